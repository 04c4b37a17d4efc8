"""Records the replies of a real API server.

Usage: ``KUBECONFIG=... python -m tests.contract.apiserver.record [conversation ...]``. Use a cluster without valuable
data, with a token or no client certificate in its kubeconfig; the recorded files have no host names. They were recorded
from Kubernetes 1.36.2 with default feature gates and without controllers.
"""

import json
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.contract.apiserver.conversation import RECORDED, STEPS, Server, hold


def main() -> None:
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
    url = urlsplit(config["clusters"][0]["cluster"]["server"])
    server = Server(url.hostname or "", url.port or 443, config["users"][0]["user"]["token"])
    for name in sys.argv[1:] or sorted(path.stem for path in STEPS.glob("*.yaml")):
        answers = hold(server, name)
        text = json.dumps(answers, indent=1, ensure_ascii=False, sort_keys=False)
        (RECORDED / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        sys.stderr.write(f"{name}: {len(answers)} answers\n")


if __name__ == "__main__":
    main()
