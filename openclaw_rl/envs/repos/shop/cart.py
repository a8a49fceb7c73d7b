"""A shopping cart: names of goods and how many of each."""


def add(cart: dict[str, int], name: str, number: int) -> dict[str, int]:
    """A cart that holds so many more of a thing."""
    return {**cart, name: cart.get(name, 0) + number}


def is_free(price: int, member: bool) -> bool:
    """Members get what costs less than 100 for nothing."""
    return member and price < 100


def label(name: str, number: int) -> str:
    """The name in capital letters, with the number before it."""
    return str(number) + " " + name.upper()
