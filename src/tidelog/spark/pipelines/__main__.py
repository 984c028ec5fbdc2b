"""A pipeline as a program of its own: ``python -m tidelog.spark.pipelines archive --topic orders ...``.

``spark-submit`` takes this file too; ``tidelog pipeline submit-file`` prints its path. The exit codes are those of ``tidelog``:
the outcome's, 1 for an error, 2 for an invalid command line, 130 when interrupted.
"""

import sys

import typer

from tidelog.client.errors import TidelogError
from tidelog.spark.pipelines.command_line import run_words
from tidelog.spark.pipelines.pipeline import MODULES, UnknownPipeline

EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
PROGRAM = "python -m tidelog.spark.pipelines"


def main(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h"):
        typer.echo(f"Usage: {PROGRAM} NAME [OPTIONS]\n\nNAME is one of {', '.join(MODULES)}; NAME --help has its options.")
        return 0 if words else EXIT_USAGE
    try:
        return run_words(words[0], words[1:], program=PROGRAM)
    except UnknownPipeline as error:
        return _fail(str(error), EXIT_USAGE)
    except typer.TyperException as error:
        return _fail(error.format_message(), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except (TidelogError, OSError) as error:
        return _fail(str(error), EXIT_ERROR)


def _fail(message: str, code: int) -> int:
    typer.echo(f"tidelog: {' '.join(message.split())}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
