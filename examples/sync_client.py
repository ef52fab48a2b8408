"""The same without an event loop: python sync_client.py [HOST:PORT]."""

import sys

import grpc

from outrider.client import SyncClient, generate_request
from outrider.sampling import SamplingParams

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"

with SyncClient(ADDRESS) as client:
    # With and without drafts: the same seed gives the same text.
    sampling = SamplingParams(temperature=0.8, seed=7, max_tokens=24)
    drafted = client.generate(generate_request("Once upon a time", sampling), timeout_s=120)
    plain = client.generate(generate_request("Once upon a time", sampling, target_only=True))
    print(drafted.text)
    assert drafted.text == plain.text
    print(f"accepted {drafted.complete.receipt.num_accepted_draft_tokens} draft tokens")

    for response in client.stream(generate_request([("user", "Count to five.")], sampling)):
        print(response.chunk.text, end="", flush=True)
    print()

    ids = client.tokenize("Ids are taken as they are.")
    print(ids, client.detokenize(ids))

    try:  # what is wrong is named
        request = generate_request("x")
        request.sampling_params.top_p = 2.0
        client.generate(request)
    except grpc.RpcError as error:
        print(error.code().name, error.details())
