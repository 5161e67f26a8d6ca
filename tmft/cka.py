"""Linear centered kernel alignment (CKA) of two sets of embeddings of the same sentences.

linear_cka is the definition. cka_matrix is the same number for all layers of one model with all of another,
made fast; StreamingCKA is the same for more sentences than fit in memory.
Letters in this file: N sentences, D1 and D2 dimensions, L1 and L2 layers.
"""

import torch
from torch import Tensor

TILE = 256  # rows and columns of the Gram matrices that are held at a time


class CKAError(ValueError):
    """Two sets of embeddings that cannot be compared."""


def linear_cka(x: Tensor, y: Tensor, debiased: bool = False) -> float:
    """Linear centered kernel alignment of two sets of sentence embeddings.

    x: (N, D1) and y: (N, D2), tensors or arrays of any float dtype; row i of both is the same sentence.
    Returns a number in [0, 1]: 1 if y is x rotated, shifted or scaled by one factor. It is biased upwards:
    independent Gaussians score about sqrt(D1 D2 / ((N + D1) (N + D2))). debiased: 0 on average for those,
    a number in [-1, 1] that may be negative.
    Computed in float64. Raises ValueError if the row counts differ, a value is not finite, one side is
    constant or, debiased, there are fewer than 4 rows or all rows of one side are equally far apart.
    Source: Kornblith et al. 2019, arXiv:1905.00414, section 3; debiased: Song et al. 2012, JMLR 13, eq. 5.
    """
    x, y = (torch.as_tensor(side).double() for side in (x, y))
    if x.ndim != 2 or y.ndim != 2:
        raise CKAError(f"shapes {tuple(x.shape)} and {tuple(y.shape)}: expected (N, D1) and (N, D2)")
    if debiased:
        return cka_matrix(x[None], y[None], debiased).item()
    check_rows(x, y)
    x, y = (centre(side[None], torch.float64)[0] for side in (x, y))  # minus the mean row
    xy, xx, yy = (
        (a.T @ b).square().sum() for a, b in ((x, y), (x, x), (y, y))
    )  # ||X'Y||², ||X'X||², ||Y'Y||²
    return (xy / (xx * yy).sqrt()).item()


def cka_matrix(x: Tensor, y: Tensor, debiased: bool = False) -> Tensor:
    """Linear CKA of every layer of x with every layer of y: (L1, N, D1), (L2, N, D2) -> (L1, L2) float64.

    As linear_cka, of which only the sums are in float64: products of float32 embeddings stay in float32,
    which is twice as fast and moves a value by less than 1e-6 (debiased: all in float64).
    """
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    n = check_rows(x, y, debiased)
    full_float32 = torch.get_float32_matmul_precision() == "highest"
    exact = debiased or torch.float64 in (x.dtype, y.dtype) or not full_float32
    dtype = torch.float64 if exact else torch.float32
    x, y = (centre(side, dtype) for side in (x, y))
    products = feature_products if features_are_cheaper(x.shape, y.shape) else gram_products
    xx, xy, yy = products(x, y)
    if debiased:
        a, b = x.square().sum(2), y.square().sum(2)  # (L, N): squared distances to the mean
        xx = unbiased(xx, a.square().sum(1), a.sum(1), a.sum(1), n)
        xy = unbiased(xy, a @ b.T, a.sum(1)[:, None], b.sum(1), n)
        yy = unbiased(yy, b.square().sum(1), b.sum(1), b.sum(1), n)
    return normalise(xx[:, None], xy, yy)


def check_rows(x: Tensor, y: Tensor, debiased: bool = False) -> int:
    """N. Raises CKAError if it is too small, or not that of both."""
    n, least = x.shape[-2], 4 if debiased else 2
    if n != y.shape[-2]:
        raise CKAError(f"{n} and {y.shape[-2]} rows: row i of both must be the same sentence")
    if n < least:
        raise CKAError(f"{n} rows: {'debiased ' if debiased else ''}CKA needs at least {least}")
    return n


def centre(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(L, N, D) -> each layer minus its mean row, over its largest magnitude: CKA knows no scale, and so
    squares do not overflow."""
    centred = torch.empty(x.shape, dtype=dtype, device=x.device)
    for layer, rows in zip(centred, x, strict=True):
        if (rows == rows[0]).all():
            raise CKAError("all rows of one side are equal: nothing to compare")
        mean = rows.mean(0, dtype=torch.float64)
        torch.sub(rows.to(dtype), mean.to(dtype), out=layer)
        largest = torch.linalg.vector_norm(layer, torch.inf)
        if not largest.isfinite():
            raise CKAError("a value is not finite")
        layer /= largest
    return centred


def features_are_cheaper(x: tuple[int, int, int], y: tuple[int, int, int]) -> bool:
    """Whether D1 x D2 products of features cost less than N x N Gram matrices; x, y: (L, N, D) of both."""
    (L1, n, D1), (L2, _, D2) = x, y
    by_features = L1 * L2 * D1 * D2 + L1 * D1**2 + L2 * D2**2  # multiplications, over 2 N
    by_gram = n / 2 * (L1 * D1 + L2 * D2 + 8 * (L1 + L2) ** 2)  # those of short vectors are slow, hence the 8
    return by_features < by_gram


def feature_products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """||X'X||², ||X'Y||², ||Y'Y||² (Frobenius) of every layer or pair: (L1,), (L1, L2), (L2,) float64.

    One D1 x D2 product at a time. x: (L1, N, D1), y: (L2, N, D2), centred.
    """

    def norm(u: Tensor, v: Tensor) -> Tensor:
        return (u.T @ v).square().sum(dtype=torch.float64)

    xx, yy = (torch.stack([norm(u, u) for u in side]) for side in (x, y))
    return xx, torch.stack([norm(u, v) for u in x for v in y]).view(len(x), len(y)), yy


def gram_products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same from N x N Gram matrices: ||X'Y||² is the sum of the entries of XX' times those of YY'.

    Each Gram matrix is made once, a tile at a time, and of two tiles that mirror each other only one.
    """
    L1, N, _ = x.shape
    total = torch.zeros(L1 + len(y), L1 + len(y), dtype=torch.float64, device=x.device)
    for row in range(0, N, TILE):
        for column in range(row, N, TILE):
            rows, columns = slice(row, row + TILE), slice(column, column + TILE)
            tiles = torch.cat([side[:, rows] @ side[:, columns].mT for side in (x, y)])  # (L1 + L2, ., .)
            tiles = tiles.flatten(1).double()
            total += (tiles @ tiles.T) * (1 if row == column else 2)
    return total.diag()[:L1], total[:L1, L1:], total.diag()[L1:]


def unbiased(product: Tensor, ab: Tensor, a: Tensor, b: Tensor, n: int) -> Tensor:
    """||X'Y||² of centred x and y -> n (n - 3) times the unbiased estimate of HSIC.

    ab: the sum over sentences of |x_i|² |y_i|²; a, b: the sums of |x_i|² and of |y_i|². Equation 5 of Song et
    al. 2012, whose Gram matrices have a diagonal of zeros, for centred data: then the rows of XX' sum to 0.
    """
    hsic = product - n / (n - 2) * ab + a * b / ((n - 1) * (n - 2))
    rounding = 1e-12 * (product + ab)
    return torch.where(hsic.abs() > rounding, hsic, 0.0)


def normalise(xx: Tensor, xy: Tensor, yy: Tensor) -> Tensor:
    """xy / sqrt(xx yy). Debiased, too, xx and yy are squared lengths: see Székely and Rizzo 2014."""
    if not ((xx > 0).all() and (yy > 0).all()):
        raise CKAError("all rows of one side are equal, or equally far apart: nothing to compare")
    return xy / (xx.sqrt() * yy.sqrt())


class StreamingCKA:
    """Linear CKA of more sentences than fit in memory: update with one batch after another, then value().

    Keeps sums of size D1 x D2, D1 x D1 and D2 x D2 in float64; equal to linear_cka of all rows at once.
    x: (..., N, D1), y: (..., N, D2), whose leading dimensions broadcast: (L, N, D) beside (L, N, D) compares
    equal layers, (L1, 1, N, D1) beside (L2, N, D2) all with all. Raises ValueError as linear_cka does.
    """

    def __init__(self):
        self.n = 0

    def update(self, x: Tensor, y: Tensor) -> None:
        x, y = (torch.as_tensor(side).double() for side in (x, y))
        if x.shape[-2] != y.shape[-2]:
            raise CKAError(f"{x.shape[-2]} and {y.shape[-2]} rows: row i of both must be the same sentence")
        if not (x.isfinite().all() and y.isfinite().all()):
            raise CKAError("a value is not finite")
        if self.n == 0:
            self.origin = x[..., :1, :].clone(), y[..., :1, :].clone()  # so that squares do not cancel
            self.sums = [0.0, 0.0, 0.0, 0.0, 0.0]
        x, y = x - self.origin[0], y - self.origin[1]
        batch = x.mT @ x, x.mT @ y, y.mT @ y, x.sum(-2), y.sum(-2)
        self.sums = [total + part for total, part in zip(self.sums, batch, strict=True)]
        self.n += x.shape[-2]

    def value(self) -> Tensor | float:
        """CKA of all rows so far: a number, or a tensor with the leading dimensions of x and y."""
        if self.n < 2:
            raise CKAError(f"{self.n} rows: CKA needs at least 2")
        xx, xy, yy, x, y = self.sums
        x, y = x / self.n, y / self.n  # the means, (..., D)
        cka = normalise(
            *(
                (product - self.n * a[..., :, None] * b[..., None, :]).square().sum((-2, -1))
                for product, a, b in ((xx, x, x), (xy, x, y), (yy, y, y))
            )
        )
        return cka if cka.ndim else cka.item()
