"""What is to be said of each table of the comparison, by who looked at it."""

READINGS: dict[str, list[str]] = {
    name: []
    for name in (
        "highway",
        "hall",
        "claus",
        "faces",
        *(f"{of} {m}" for of in ("Birmingham", "Hangzhou") for m in (0.4, 0.6)),
    )
}
