"""The name by which passes are registered as operators: another one for each text."""

import hashlib
from pathlib import Path
from typing import Any

import torch.distributed as dist

# ---- Schedule: a pass is an operator, for compilers and checkpoint policies.

group_named: Any = dist.distributed_c10d._resolve_process_group  # regular
digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
