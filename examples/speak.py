"""A question in, an answer in text and speech out: `python examples/speak.py "What is the capital of France?"`

Needs `pip install -e '.[cpu,hibari]'`; the first run fetches 178 MB of weights and builds the engines.
"""

import sys

from framework import Deployment, TextChunk

question = sys.argv[1] if len(sys.argv) > 1 else "What is the capital of France?"

with Deployment.open("voice_assistant", sampling="greedy", build_if_missing=True) as deployment:
    for chunk in deployment.stream(prompt=question):
        if isinstance(chunk, TextChunk):
            print(chunk.text, end="", flush=True)
    print()
    deployment.run(prompt=question, speak=True).save_audio("answer.wav")
