"""``make check-manifests``: the objects of ``ops/kubernetes.yml`` against the schemas of Kubernetes and KEDA.

Kubernetes' own objects are judged by kubernetes-validate (PyPI), which has the schemas of each version, strictly: a field that no
schema knows is a mistake. KEDA's object is judged by @kubernetes-models/keda (npm), whose code is generated from KEDA's schemas.
Both are fetched by name and version when the target runs, so this is no part of ``make test``.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "ops" / "kubernetes.yml"
# The oldest version whose objects are those of the manifests, and the newest that the validator has.
VERSIONS = ("1.27", "1.37")
KEDA_PACKAGE = "@kubernetes-models/keda@0.4.2"
KEDA_JUDGE = """
const kinds = require("@kubernetes-models/keda/keda.sh/v1alpha1");
for (const each of JSON.parse(require("fs").readFileSync(0, "utf8"))) {
  try { new kinds[each.kind](each).validate(); }
  catch (error) { console.log(`${each.kind} ${each.metadata.name}: ${error.message}`); }
}
"""
FETCH_SECONDS_MAX = 300


def kubernetes_problems(objects: list[dict[str, Any]]) -> list[str]:
    """One line for each object that a version of Kubernetes would refuse."""
    # Only the target installs it.
    import kubernetes_validate

    found = []
    for version in VERSIONS:
        for each in objects:
            name = f"{each['kind']} {each['metadata']['name']} for Kubernetes {version}"
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                found.append(f"{name}: {'.'.join(map(str, error.path))}: {error.message}")
            except kubernetes_validate.SchemaNotFoundError:
                found.append(f"{name}: there is no schema")
    return found


def keda_problems(objects: list[dict[str, Any]], directory: Path) -> list[str]:
    """One line for each object that KEDA would refuse. The package is installed into ``directory``."""
    for program in ("npm", "node"):
        if shutil.which(program) is None:
            return [f"{program} is not installed, so KEDA's schemas cannot judge {len(objects)} objects"]
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(directory), KEDA_PACKAGE]
    subprocess.run(install, check=True, timeout=FETCH_SECONDS_MAX)
    judged = subprocess.run(
        ["node", "-e", KEDA_JUDGE], cwd=directory, input=json.dumps(objects), capture_output=True, text=True, check=True
    )
    return judged.stdout.splitlines()


def main() -> int:
    objects = list(yaml.safe_load_all(MANIFESTS.read_text()))
    of_keda = [each for each in objects if each["apiVersion"].startswith("keda.sh/")]
    others = [each for each in objects if each not in of_keda]
    with tempfile.TemporaryDirectory(prefix="tidelog-") as directory:
        problems = kubernetes_problems(others) + keda_problems(of_keda, Path(directory))
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{len(objects)} objects of {MANIFESTS.name} fit the schemas of Kubernetes {' and '.join(VERSIONS)} and of KEDA")
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
