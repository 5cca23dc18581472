"""Chat templates: where a model keeps its own, well-known ones by name, and putting one into the output's files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mergepipe.checkpoint.strictjson import parse_object
from mergepipe.sidecar.tokenizer import CONFIG, read_file
from mergepipe.store.contract import ByteStore

FILE: Final = "chat_template.jinja"
_LEGACY: Final = "chat_template.json"
_DEFAULT: Final = "default"

# Written from the formats' own descriptions; names and rendered text are mergekit's.
NAMED: Final[Mapping[str, str]] = {
    "alpaca": (
        "{% set ns = namespace(system='') %}"
        "{% for message in messages %}{% if message['role'] == 'system' %}"
        "{% set ns.system = message['content'] | trim %}{% endif %}{% endfor %}"
        "{{ ns.system + '\\n\\n' }}"
        "{% for message in messages %}"
        "{% set gap = '' if loop.last else '\\n\\n' %}"
        "{% if message['role'] == 'user' %}{{ '### Instruction:\\n' + message['content'] | trim + gap }}"
        "{% elif message['role'] == 'assistant' %}{{ '### Response:\\n' + message['content'] | trim + gap }}"
        "{% elif message['role'] == 'user_context' %}{{ '### Input:\\n' + message['content'] | trim + gap }}"
        "{% endif %}{% endfor %}"
        "{% if add_generation_prompt and messages[-1]['role'] != 'assistant' %}{{ '### Response:\\n' }}{% endif %}"
    ),
    "chatml": (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "exaone": (
        "{% for message in messages %}"
        "{% if loop.first and message['role'] != 'system' %}{{ '[|system|][|endofturn|]\\n' }}{% endif %}"
        "{{ '[|' + message['role'] + '|]' + message['content'] }}"
        "{{ '\\n' if message['role'] == 'user' else '[|endofturn|]\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}"
    ),
    "llama3": (
        "{% for message in messages %}"
        "{% if loop.first %}{{ bos_token }}{% endif %}"
        "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
        "{{ message['content'] | trim + '<|eot_id|>' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
    ),
    "mistral": (
        "{% set ns = namespace(system='') %}{% set turns = messages %}"
        "{% if messages[0]['role'] == 'system' %}"
        "{% set ns.system = messages[0]['content'] + '\\n\\n' %}{% set turns = messages[1:] %}"
        "{% endif %}"
        "{{ bos_token }}"
        "{% for message in turns %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate: user, assistant, user, … after an optional system message') }}"
        "{% endif %}"
        "{% if message['role'] == 'user' %}"
        "{{ ' [INST] ' + (ns.system if loop.first else '') + message['content'] + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
        "{% else %}{{ raise_exception('only user and assistant messages follow the system message') }}{% endif %}"
        "{% endfor %}"
    ),
}


def read_template(store: ByteStore, what: str) -> str | None:
    """A model's chat template, from any of the three places it may be in; of several named ones the default."""
    text = read_file(store, FILE)
    if text is not None:
        return text.decode("utf-8", "replace")
    for key in (CONFIG, _LEGACY):
        held = read_file(store, key)
        found = None if held is None else _template_of(parse_object(held, f"{what}/{key}").get("chat_template"))
        if found is not None:
            return found
    return None


def _template_of(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    named = value if isinstance(value, list) else []
    return next(
        (each.get("template") for each in named if isinstance(each, dict) and each.get("name") == _DEFAULT), None
    )


def most_common(templates: Sequence[str | None]) -> str | None:
    """The template most models have, the first of equals; None where no model has one."""
    found = Counter(each.strip() for each in templates if each and each.strip())
    return found.most_common(1)[0][0] if found else None


def with_template(files: Mapping[str, bytes], template: str, what: str) -> dict[str, bytes]:
    """The files to write so that `template` is the output's, among `files`, those a tokenizer had.

    It goes wherever one was; where none was, into tokenizer_config.json, which every version of transformers
    reads, and without that file into chat_template.jinja.
    """
    changed: dict[str, bytes] = {}
    if FILE in files:
        changed[FILE] = template.encode()
    for key in (CONFIG, _LEGACY):
        if key in files:
            document = parse_object(files[key], f"{what}/{key}")
            if "chat_template" in document or (key == CONFIG and FILE not in files):
                document["chat_template"] = _replaced(document.get("chat_template"), template)
                changed[key] = (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()
    return changed or {FILE: template.encode()}


def _replaced(value: Any, template: str) -> Any:
    if not isinstance(value, list):
        return template
    others = [each for each in value if not (isinstance(each, dict) and each.get("name") == _DEFAULT)]
    return [{"name": _DEFAULT, "template": template}, *others]
