"""Names of variables and options that look like a secret's."""

import re

# Not every token is a secret: models have eos_token and pad_token.
_SECRET = re.compile(
    r"(?:.*_)?(?:API_?KEY|SECRET(?:_KEY)?|PASSWORD|PASSWD|ACCESS_KEY|SECRET_ACCESS_KEY)"
    r"|(?:(?:.*_)?(?:HF|HUB|HUGGING_?FACE(?:_HUB)?|AUTH|ACCESS|API|BEARER|GITHUB|GITLAB|WANDB|NGC)_)?TOKEN"
)


def names_secret(name: str) -> bool:
    return _SECRET.fullmatch(name.lstrip("-").replace("-", "_").upper()) is not None
