"""``python -m trainer.verify KIND SETTINGS DEVICE``: one check; its result is the last line."""

import json
import sys

from trainer.verify.checks import run

if __name__ == "__main__":
    kind, settings, device = sys.argv[1:]
    print(json.dumps(run(kind, json.loads(settings), device)), flush=True)
