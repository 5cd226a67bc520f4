"""What nsqd does in a second, beside a floor and beside the original.

`__main__` reads the options, `rows` says what is measured, `servers` starts what is measured,
`measure` runs one load against one server, `report` prints, `build` compiles `native/`.
"""
