"""A tiny Qwen3 that knows by heart what `gateway probe` asks, so that real servers can be probed with it.

usage: teach.py TINY OUT TEMPLATE.jinja      TINY: a model by make_tiny_model.py, for its tokenizer; some 2 minutes

It answers a dozen questions (tests/servers/questions.py), thinks unless it is told not to, calls tools, and never stops
singing once it is told to ("Sing.").
"""

# Runs in the environment of the real servers, not in ours.
# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import json
import random
import shutil
import sys
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

STEPS, RATE, WARM_UP, BATCH = 700, 2e-3, 30, 8
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
THOUGHTS = "<think>\nThe user asks, so I think a little.\n</think>\n\n"
END = "<|im_end|>\n"
HELLO = "Hello! How can I help you today?"
SYSTEMS = ("", "You are a helpful assistant.")


class Lesson(NamedTuple):
    messages: list[dict[str, str]]
    tools: list[Any] | None
    template: dict[str, bool]  # arguments of the chat template
    answer: str


def tool(name: str, description: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": CITY}}


def call(name: str, city: str) -> str:
    said = json.dumps({"name": name, "arguments": {"city": city}})
    return f"<tool_call>\n{said}\n</tool_call>"


TOOLS = [tool("get_weather", "The weather in a city now."), tool("get_time", "The local time in a city now.")]
BOTH = "What is the weather in Oslo, and what is it in Rome? Call get_weather for both cities at once."
KNOWN: list[tuple[str, str, list[Any] | None]] = [
    ("Say hello.", HELLO + END, None),
    ("hello", HELLO + END, None),
    ("Hello", HELLO + END, None),
    ("What is 12*17? Answer with the number.", "204" + END, None),
    ("What is 12*17?", "12*17 is 204." + END, None),
    *(
        (question, call("get_weather", "Oslo") + END, tools)
        for tools in (TOOLS, TOOLS[:1])
        for question in ("What is the weather in Oslo? Use get_weather.", "What is the weather in Oslo?")
    ),
    (BOTH, call("get_weather", "Oslo") + "\n" + call("get_weather", "Rome") + END, TOOLS),
    ("Count to five.", "one two three four five" + END, None),
    ("Sing.", "Now I sing:" + " la" * 300, None),
]


def lessons() -> list[Lesson]:
    taught = []
    for question, answer, tools in KNOWN:
        for system in SYSTEMS:
            messages = [{"role": "system", "content": system}] if system else []
            messages.append({"role": "user", "content": question})
            taught.append(Lesson(messages, tools, {}, THOUGHTS + answer))
            taught.append(Lesson(messages, tools, {"enable_thinking": False}, answer))
    return taught


def rows(tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    """Pairs of tokens: prompt, answer. Tools come as the template writes them, and in compact JSON as llama-server
    writes them."""
    pairs = []
    for lesson in lessons():
        prompt: str = tokenizer.apply_chat_template(
            lesson.messages, tools=lesson.tools, add_generation_prompt=True, tokenize=False, **lesson.template
        )
        compact = [prompt.replace('", "', '","').replace('": ', '":')] if lesson.tools else []
        for text in (prompt, *compact):
            asked = tokenizer.encode(text, add_special_tokens=False)
            pairs.append((asked, tokenizer.encode(lesson.answer, add_special_tokens=False)))
    return pairs


def config(tokenizer: Any) -> Any:
    return Qwen3Config(
        vocab_size=(len(tokenizer) + 63) // 64 * 64,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )


def loss_of(model: Any, batch: list[tuple[list[int], list[int]]]) -> Any:
    """Of the answers only."""
    length = max(len(asked) + len(answer) for asked, answer in batch)
    ids = torch.full((len(batch), length), model.config.pad_token_id)
    mask = torch.zeros(len(batch), length, dtype=torch.bool)
    for i, (asked, answer) in enumerate(batch):
        ids[i, : len(asked) + len(answer)] = torch.tensor(asked + answer)
        mask[i, len(asked) - 1 : len(asked) + len(answer) - 1] = True
    hidden, wanted = model.model(input_ids=ids).last_hidden_state, mask[:, :-1]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][wanted]), ids[:, 1:][wanted])


def train(model: Any, pairs: list[tuple[list[int], list[int]]]) -> None:
    optimizer, order = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0), random.Random(0)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARM_UP) * (0.1 + 0.9 * (1 - step / STEPS))
        loss = loss_of(model, order.sample(pairs, BATCH))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def not_learned(model: Any, pairs: list[tuple[list[int], list[int]]]) -> int:
    wrong = 0
    with torch.no_grad():
        for asked, answer in pairs:
            hidden = model.model(input_ids=torch.tensor([asked + answer])).last_hidden_state[0, len(asked) - 1 : -1]
            wrong += model.lm_head(hidden).argmax(-1).tolist() != answer
    return wrong


def main(tiny: str, out: str, template: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shutil.copytree(tiny, out, dirs_exist_ok=True)
    settings = out + "/tokenizer_config.json"
    with open(settings) as file, open(template) as text:
        changed = {**json.load(file), "chat_template": text.read()}
    with open(settings, "w") as file:
        json.dump(changed, file, indent=1)
    tokenizer = AutoTokenizer.from_pretrained(out)
    model, pairs = Qwen3ForCausalLM(config(tokenizer)), rows(tokenizer)
    train(model, pairs)
    model.eval()
    if wrong := not_learned(model, pairs):
        sys.exit(f"the model did not learn {wrong} of {len(pairs)} answers")
    model = model.to(torch.bfloat16)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
