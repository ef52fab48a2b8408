"""Stream an answer, then ask for several things at once: python async_client.py [HOST:PORT]."""

import asyncio
import sys

from outrider.client import Client, generate_request
from outrider.sampling import SamplingParams

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"


async def main() -> None:
    async with Client(ADDRESS) as client:
        request = generate_request(
            [("system", "Answer in one sentence."), ("user", "Why is the sky blue?")],
            SamplingParams(temperature=0.8, seed=7, max_tokens=48),
        )
        async for response in client.stream(request, timeout_s=120):
            print(response.chunk.text, end="", flush=True)
            if response.HasField("complete"):
                receipt = response.complete.receipt
                print(f"\n{receipt.num_passes_saved} passes of the target were saved")

        prompts = ["1, 2, 3,", "a, b, c,", "Monday, Tuesday,"]
        greedy = SamplingParams(temperature=0.0, max_tokens=12)
        calls = [client.generate(generate_request(each, greedy)) for each in prompts]
        for prompt, output in zip(prompts, await asyncio.gather(*calls), strict=True):
            print(f"{prompt}{output.text}")


asyncio.run(main())
