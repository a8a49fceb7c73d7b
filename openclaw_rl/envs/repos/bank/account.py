"""An account: a balance in coins."""


def deposit(balance: int, coins: int) -> int:
    """The balance after so many coins came in."""
    return balance + coins


def withdraw(balance: int, coins: int) -> int:
    """The balance after so many coins went out; it stays as it is if there are not enough."""
    if coins > balance:
        return balance
    return balance - coins


def interest(balance: int, percent: int) -> int:
    """The interest of a year, in whole coins."""
    return balance * percent // 100


def can_pay(balance: int, price: int) -> bool:
    """Whether the balance is enough for the price."""
    return balance >= price


def is_rich(balance: int, debts: int) -> bool:
    """Who has more than 1000 coins and no debts."""
    return balance > 1000 and debts == 0


def largest(balances: list[int]) -> int:
    """The largest of all balances."""
    return max(balances)


def statement(name: str, balance: int) -> str:
    """The name, a colon and the balance."""
    return name + ": " + str(balance)


def after(balance: int, monthly: int, months: int) -> int:
    """The balance after some months, with so many coins coming in each month."""
    return balance + monthly * months
