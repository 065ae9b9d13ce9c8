"""betoken: the fastest honest way to generate text with open-weight language models, by speculating."""
