"""What a stranger's bundle goes through before its files are opened: manifest fields, graph, tokenizer. Nothing in it is trusted."""
