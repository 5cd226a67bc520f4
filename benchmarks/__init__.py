"""What nsqd does in a second, beside a floor and beside the original.

`__main__` reads the options, `rows` says what is measured, `servers` starts what is measured,
`folders` says where its data goes, `generator` runs a load, `measure` and `disk` do so against one
server, `checks` asks it for its counts, `report` prints, `build` compiles `native/`.
"""
