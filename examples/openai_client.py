"""OpenAI's own client (pip install openai): python openai_client.py [BASE_URL]."""

import sys

from openai import OpenAI

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"

client = OpenAI(base_url=BASE_URL, api_key="none")  # the key is not looked at
model = next(iter(client.models.list())).id

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Why is the sky blue?"}],
    max_tokens=48,
    stream=True,
    stream_options={"include_usage": True},
)
for event in stream:
    for choice in event.choices:
        print(choice.delta.content or "", end="", flush=True)
    if event.usage:
        print(f"\n{event.usage.completion_tokens} tokens")

# What OpenAI has no parameter for goes into extra_body; docs/api.md lists it.
answer = client.completions.create(
    model=model,
    prompt="Once upon a time",
    seed=7,
    max_tokens=24,
    extra_body={"top_k": 40, "speculation": {"sources": ["ngram"]}, "outrider_receipt": True},
)
print(answer.choices[0].text)
print(answer.choices[0].outrider)  # type: ignore[attr-defined]
