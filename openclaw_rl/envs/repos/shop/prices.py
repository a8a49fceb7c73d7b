"""Prices in cents."""


def total(prices: list[int]) -> int:
    """The sum of all prices."""
    result = 0
    for price in prices:
        result = result + price
    return result


def discount(price: int, percent: int) -> int:
    """The price with so many percent taken off."""
    return price - price * percent // 100


def shipping(weight: int) -> int:
    """Nothing below 5 kilos, from there on 2 cents for each kilo."""
    if weight < 5:
        return 0
    return weight * 2


def cheapest(prices: list[int]) -> int:
    """The lowest price, or 0 without prices."""
    return min(prices) if prices else 0
