"""Names of variables: those that the launcher, bash or this program sets, and those that look like a secret's."""

import re

SET_BY_LAUNCHER = {
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
}
# How torchrun shows the lines of its processes; nothing else sets these.
_OUTPUT = {"PET_TEE", "PET_REDIRECTS", "PET_LOG_DIR", "PET_LOCAL_RANKS_FILTER", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"}
# Set for every process unless `env` in the spec does.
SET_BY_US = ("OMP_NUM_THREADS", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")

# Bash keeps these for itself: an assignment fails or is lost.
_BASH_VARIABLES = re.compile(
    "BASH.*|_|COMP_WORDBREAKS|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|E?UID|FUNCNAME|GROUPS|HISTCMD|LINENO|OPTIND"
    "|PIPESTATUS|PPID|S?RANDOM|SECONDS|SHELLOPTS|SHLVL"
)
# Not every token is a secret: models have eos_token and pad_token.
_SECRET = re.compile(
    r"(?:.*_)?(?:API_?KEY|SECRET(?:_KEY)?|PASSWORD|PASSWD|ACCESS_KEY|SECRET_ACCESS_KEY)"
    r"|(?:(?:.*_)?(?:HF|HUB|HUGGING_?FACE(?:_HUB)?|AUTH|ACCESS|API|BEARER|GITHUB|GITLAB|WANDB|NGC)_)?TOKEN"
)


def is_set_by_launcher(name: str) -> bool:
    """Return True if the launcher sets a variable: a value in the spec would be lost or break the job."""
    return name in SET_BY_LAUNCHER or (name.startswith(("PET_", "TORCHELASTIC_")) and name not in _OUTPUT)


def is_bash_variable(name: str) -> bool:
    return _BASH_VARIABLES.fullmatch(name) is not None


def names_secret(name: str) -> bool:
    return _SECRET.fullmatch(name.lstrip("-").replace("-", "_").upper()) is not None
