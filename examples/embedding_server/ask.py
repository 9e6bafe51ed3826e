"""Sends texts and prints how near they are to each other: the cosines of their embeddings."""

import json
import urllib.request

TEXTS = ["the cat sat on the mat", "a cat sat on a mat", "the dog ran very far"]
URL = "http://127.0.0.1:8000/v2/models/sentences/infer"


def embed(texts: list[str]) -> list[list[float]]:
    """A vector of length 1 for each text. Raises urllib.error.HTTPError, whose body says what is wrong."""
    request = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]}
    with urllib.request.urlopen(urllib.request.Request(URL, json.dumps(request).encode()), timeout=30) as answer:
        (output,) = (each for each in json.load(answer)["outputs"] if each["name"] == "sentence_embedding")
    width = output["shape"][1]
    return [output["data"][start : start + width] for start in range(0, len(output["data"]), width)]


if __name__ == "__main__":
    vectors = embed(TEXTS)
    for first, vector in zip(TEXTS, vectors, strict=True):
        print(*(f"{sum(a * b for a, b in zip(vector, other, strict=True)):6.3f}" for other in vectors), first)
