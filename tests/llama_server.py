"""llama.cpp's own server, in the environment of tests.peers: python llama_server.py MODEL.gguf PORT"""

import sys
import threading

if __name__ == "__main__":
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path, settings.port = sys.argv[1], int(sys.argv[2])
    settings.n_ctx, settings.n_parallel = 8192, 2
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.warmup = False
    server = xllamacpp.Server(settings)
    threading.Event().wait()
