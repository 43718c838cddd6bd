"""What a stranger's bundle goes through before its files are opened: manifest fields, graph, tokenizer.
Nothing in it is trusted."""

# the way out where its content is wrong, whoever made it
GET_AGAIN = "get the bundle again, or export it again from its run"
