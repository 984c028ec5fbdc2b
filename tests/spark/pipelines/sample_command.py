"""``tidelog`` with the sample pipeline among the others, as a process: the words of the command line are its arguments."""

import sys

from tidelog.cli.main import main
from tidelog.spark.pipelines.pipeline import MODULES

if __name__ == "__main__":
    MODULES["sample"] = "tests.spark.pipelines.sample_pipeline"
    sys.exit(main(sys.argv[1:]))
