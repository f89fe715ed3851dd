"""The judge: a model scores a dialogue on a rubric, by one of several methods."""
