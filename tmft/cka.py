"""Linear centered kernel alignment (CKA): how similar are two sets of embeddings of the same sentences?

Let X (N x D1) and Y (N x D2) hold the embeddings of N sentences by two models, or by two layers of one
model, with the mean of each column subtracted. Two models agree if they find the same sentences similar,
that is, if the N x N matrices of inner products XX' and YY' (the Gram matrices) are alike. CKA is the
cosine of these two matrices:

                  <XX', YY'>          ||X'Y||²
    CKA(X, Y) = --------------- = ---------------        (Kornblith et al. 2019, arXiv:1905.00414)
                ||XX'|| ||YY'||   ||X'X|| ||Y'Y||

where <., .> is the sum of the products of equal elements, and ||.|| the Frobenius norm. CKA is 1 if Y is X
rotated, shifted or scaled by one factor, and 0 if no direction of X correlates with any direction of Y. The
widths D1 and D2 may differ. The second form needs only matrices of D1 x D2, D1 x D1 and D2 x D2 numbers; it
is cheaper if there are many sentences, and the first form is cheaper if there are few.

`linear_cka` computes CKA by this definition. `cka_matrix` computes it, faster, for every layer of one model
with every layer of another one. `StreamingCKA` computes it for more sentences than fit in memory.

Shapes: N sentences, D1 and D2 dimensions, L1 and L2 layers. X' is the transpose of X.
"""

import torch
from torch import Tensor

TILE_SIZE = 256  # number of rows and of columns of the tiles in which Gram matrices are computed


class CKAError(ValueError):
    """Raised if CKA of two sets of embeddings is undefined."""


def linear_cka(x: Tensor, y: Tensor, debiased: bool = False) -> float:
    """Compute linear centered kernel alignment (CKA) of two sets of embeddings of the same sentences.

    x: (N, D1) and y: (N, D2), tensors or arrays of any float dtype; row i of both is the same sentence.
    debiased: use the unbiased estimate of HSIC, the Hilbert-Schmidt independence criterion. HSIC is what CKA
    normalizes; up to a factor its plain estimate is ||X'Y||² (see `unbiased_hsic`).

    Returns a number in [0, 1]: 1 if y is x rotated, shifted or scaled by one factor. The number is biased
    upwards if sentences are few: independent Gaussians score about sqrt(D1 D2 / ((N + D1) (N + D2))). The
    debiased estimate is 0 on average for those; it lies in [-1, 1] and may be negative.

    Computed in float64. Raises CKAError, a ValueError, if the numbers of sentences differ, a value is not
    finite, all embeddings of one set are equal or, debiased, there are fewer than 4 sentences or all
    embeddings of one set are equally far apart.
    Source: Kornblith et al. 2019, arXiv:1905.00414, section 3; debiased: Song et al. 2012, JMLR 13, eq. 5.

    Example:

    >>> x = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 3.0], [4.0, 1.0]])
    >>> rotation = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    >>> round(linear_cka(x, 3 * x @ rotation + 7), 6)  # rotated, scaled and shifted
    1.0
    >>> round(linear_cka(x, x[:, :1]), 3)  # the first dimension alone
    0.887
    """
    x, y = (torch.as_tensor(embeddings).double() for embeddings in (x, y))
    if x.ndim != 2 or y.ndim != 2:
        raise CKAError(f"shapes {tuple(x.shape)} and {tuple(y.shape)}: expected (N, D1) and (N, D2)")
    if debiased:
        return cka_matrix(x[None], y[None], debiased).item()
    check_num_sentences(x, y)
    x, y = (center_and_scale(embeddings[None], torch.float64)[0] for embeddings in (x, y))
    xy = (x.T @ y).square().sum()  # ||X'Y||²
    xx = (x.T @ x).square().sum()  # ||X'X||²
    yy = (y.T @ y).square().sum()  # ||Y'Y||²
    return (xy / (xx * yy).sqrt()).item()


# --------------------------------------------------------------------------------- all layers with all layers


def cka_matrix(x: Tensor, y: Tensor, debiased: bool = False) -> Tensor:
    """Compute linear CKA of every layer of x with every layer of y; return (L1, L2) float64.

    x: (L1, N, D1) and y: (L2, N, D2), the embeddings of the same N sentences from L1 and L2 layers.
    debiased: use the unbiased estimate of HSIC, as in `linear_cka`.

    Each value equals that of `linear_cka` up to 1e-6: products of float32 embeddings are computed in float32,
    which is twice as fast, and only their sums in float64. If `debiased`, everything is computed in float64.
    Raises CKAError where `linear_cka` does.

    Example:

    >>> from tmft import SentenceEncoder
    >>> model = SentenceEncoder.from_pretrained("data/twins/mlm", layer=2)
    >>> token_ids = model.tokenize(["A man plays.", "Dogs sleep.", "She eats.", "It rains again."])
    >>> layers = model.embed_token_ids(token_ids, model.forward_all_layers)  # (3, 4, 128)
    >>> cka_matrix(layers, layers).diagonal().round(decimals=4).tolist()
    [1.0, 1.0, 1.0]
    """
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    check_num_sentences(x, y, debiased)
    num_sentences = x.shape[-2]
    full_float32 = torch.get_float32_matmul_precision() == "highest"
    needs_float64 = debiased or torch.float64 in (x.dtype, y.dtype) or not full_float32
    dtype = torch.float64 if needs_float64 else torch.float32
    x, y = (center_and_scale(layers, dtype) for layers in (x, y))
    products = feature_products if features_are_cheaper(x.shape, y.shape) else gram_products
    xx, xy, yy = products(x, y)
    if debiased:
        a, b = x.square().sum(2), y.square().sum(2)  # (L1, N), (L2, N): squared distances to the mean
        xx = unbiased_hsic(xx, a.square().sum(1), a.sum(1), a.sum(1), num_sentences)
        xy = unbiased_hsic(xy, a @ b.T, a.sum(1)[:, None], b.sum(1), num_sentences)
        yy = unbiased_hsic(yy, b.square().sum(1), b.sum(1), b.sum(1), num_sentences)
    return normalize_hsic(xx[:, None], xy, yy)


def check_num_sentences(x: Tensor, y: Tensor, debiased: bool = False) -> None:
    """Raise CKAError if x and y differ in their number of sentences, or if it is too small for CKA.

    x: (..., N, D1), y: (..., N, D2). debiased: whether the unbiased estimate is used, which needs 4 sentences
    instead of 2.
    """
    n, minimum = x.shape[-2], 4 if debiased else 2
    if n != y.shape[-2]:
        raise CKAError(f"{n} and {y.shape[-2]} embeddings: row i of both must be the same sentence")
    if n < minimum:
        raise CKAError(f"{n} sentences: {'debiased ' if debiased else ''}CKA needs at least {minimum}")


def center_and_scale(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Subtract from each layer its mean embedding, and divide it by its largest absolute value.

    x: (L, N, D). Returns a new tensor (L, N, D) of this dtype. The scale does not change CKA; after the
    division, squares cannot overflow.
    Raises CKAError if all embeddings of a layer are equal, or a value is not finite.
    """
    centered = torch.empty(x.shape, dtype=dtype, device=x.device)
    for layer, embeddings in zip(centered, x, strict=True):
        if (embeddings == embeddings[0]).all():
            raise CKAError("all embeddings of one set are equal: nothing to compare")
        mean = embeddings.mean(0, dtype=torch.float64)
        torch.sub(embeddings.to(dtype), mean.to(dtype), out=layer)
        largest = torch.linalg.vector_norm(layer, torch.inf)
        if not largest.isfinite():
            raise CKAError("a value is not finite")
        layer /= largest
    return centered


def features_are_cheaper(x: tuple[int, ...], y: tuple[int, ...]) -> bool:
    """Return whether `feature_products` needs less time than `gram_products`.

    x, y: the shapes of their arguments, (L1, N, D1) and (L2, N, D2).
    """
    (L1, n, D1), (L2, _, D2) = x, y
    feature_cost = L1 * L2 * D1 * D2 + L1 * D1**2 + L2 * D2**2  # number of multiplications / 2 N
    # The Gram matrices are multiplied as short vectors, which is slow: hence the factor 8.
    gram_cost = n / 2 * (L1 * D1 + L2 * D2 + 8 * (L1 + L2) ** 2)
    return feature_cost < gram_cost


def feature_products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the squared Frobenius norms ||X'X||², ||X'Y||² and ||Y'Y||² for all layers X of x and Y of y.

    x: (L1, N, D1) and y: (L2, N, D2), both centered.
    Returns three float64 tensors: ||X'X||² of each layer of x, (L1,), ||X'Y||² of each layer of x with each
    layer of y, (L1, L2), and ||Y'Y||² of each layer of y, (L2,).
    Only one of the D1 x D2 matrices X'Y is in memory at a time.
    """

    def squared_norm(u: Tensor, v: Tensor) -> Tensor:
        return (u.T @ v).square().sum(dtype=torch.float64)

    xx, yy = (torch.stack([squared_norm(u, u) for u in layers]) for layers in (x, y))
    return xx, torch.stack([squared_norm(u, v) for u in x for v in y]).view(len(x), len(y)), yy


def gram_products(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ||X'X||², ||X'Y||² and ||Y'Y||² for all layers X of x and Y of y, from N x N Gram matrices.

    It uses ||X'Y||² = <XX', YY'>: the squared norm is the sum of the products of equal elements of the Gram
    matrices XX' and YY'. The Gram matrix of each layer is computed once, tile by tile. As Gram matrices are
    symmetric, only one of two tiles that mirror each other is computed, and it counts twice.

    x: (L1, N, D1) and y: (L2, N, D2), both centered; the first axis is the layer.
    Returns three float64 tensors: ||X'X||² of each layer of x, (L1,), ||X'Y||² of each layer of x with each
    layer of y, (L1, L2), and ||Y'Y||² of each layer of y, (L2,).
    """
    L1, N, _ = x.shape
    total = torch.zeros(L1 + len(y), L1 + len(y), dtype=torch.float64, device=x.device)
    for row in range(0, N, TILE_SIZE):
        for column in range(row, N, TILE_SIZE):
            rows, columns = slice(row, row + TILE_SIZE), slice(column, column + TILE_SIZE)
            x_tiles = x[:, rows] @ x[:, columns].mT  # (L1, ., .)
            y_tiles = y[:, rows] @ y[:, columns].mT  # (L2, ., .)
            tiles = torch.cat([x_tiles, y_tiles]).flatten(1).double()  # (L1 + L2, TILE_SIZE²)
            total += (tiles @ tiles.T) * (1 if row == column else 2)
    return total.diag()[:L1], total[:L1, L1:], total.diag()[L1:]


def unbiased_hsic(product: Tensor, ab: Tensor, a: Tensor, b: Tensor, n: int) -> Tensor:
    """Return n (n - 3) times the unbiased estimate of the HSIC of x and y; the factor cancels in CKA.

    HSIC is the Hilbert-Schmidt independence criterion, the quantity that CKA normalizes.
    product: ||X'Y||² of centered x and y. ab: the sum over sentences i of |x_i|² |y_i|². a, b: the sums over
        sentences of |x_i|² and of |y_i|². n: number of sentences. The tensors have any shapes that broadcast,
        one element for each pair of layers.
    Source: Song et al. 2012, equation 5, whose Gram matrices have zeros on the diagonal; simplified for
    centered data, where each row of XX' sums to 0.
    """
    hsic = product - n / (n - 2) * ab + a * b / ((n - 1) * (n - 2))
    rounding_error = 1e-12 * (product + ab)
    return torch.where(hsic.abs() > rounding_error, hsic, 0.0)


def normalize_hsic(xx: Tensor, xy: Tensor, yy: Tensor) -> Tensor:
    """Return CKA, xy / sqrt(xx yy), from the HSIC of x with y, of x with x and of y with y.

    The debiased estimates of xx and yy are squared lengths, too, hence not negative (Székely and Rizzo 2014).
    Raises CKAError if one of them is 0.
    """
    if not ((xx > 0).all() and (yy > 0).all()):
        raise CKAError("all embeddings of one set are equal, or equally far apart: nothing to compare")
    return xy / (xx.sqrt() * yy.sqrt())


# ------------------------------------------------------------------------ more sentences than fit in memory


class StreamingCKA:
    """Computes linear CKA of more sentences than fit in memory: call `update` for every batch, then `value`.

    It keeps only sums of size D1 x D2, D1 x D1 and D2 x D2, in float64. The value equals that of `linear_cka`
    for all embeddings at once. Raises CKAError where `linear_cka` does.

    Example:

    >>> x, cka = torch.arange(12.0).reshape(6, 2).sin(), StreamingCKA()
    >>> for batch in x.split(2):
    ...     cka.update(batch, batch.square())
    >>> abs(cka.value() - linear_cka(x, x.square())) < 1e-12
    True
    """

    n: int
    origin: tuple[Tensor, Tensor]
    sums: list[Tensor]

    def __init__(self):
        self.n = 0  # N, the number of sentences so far

    def update(self, x: Tensor, y: Tensor) -> None:
        """Add the embeddings of a batch of n of the N sentences: x, (..., n, D1), and y, (..., n, D2).

        Leading dimensions broadcast: (L, n, D1) with (L, n, D2) compares equal layers, (L1, 1, n, D1) with
        (L2, n, D2) every layer with every layer.
        """
        x, y = (torch.as_tensor(embeddings).double() for embeddings in (x, y))
        if x.shape[-2] != y.shape[-2]:
            raise CKAError(
                f"{x.shape[-2]} and {y.shape[-2]} embeddings: row i of both must be the same sentence"
            )
        if not (x.isfinite().all() and y.isfinite().all()):
            raise CKAError("a value is not finite")
        if self.n == 0:
            # Everything is measured from the first sentence, so that sums of squares do not cancel.
            self.origin = x[..., :1, :].clone(), y[..., :1, :].clone()
        x, y = x - self.origin[0], y - self.origin[1]
        batch_sums = x.mT @ x, x.mT @ y, y.mT @ y, x.sum(-2), y.sum(-2)
        if self.n == 0:
            self.sums = [torch.zeros_like(batch_sum) for batch_sum in batch_sums]
        self.sums = [total + batch_sum for total, batch_sum in zip(self.sums, batch_sums, strict=True)]
        self.n += x.shape[-2]

    def value(self) -> Tensor | float:
        """Return CKA of all sentences so far: a float, or a tensor if x and y have leading dimensions."""
        if self.n < 2:
            raise CKAError(f"{self.n} sentences: CKA needs at least 2")
        xx, xy, yy, x_sum, y_sum = self.sums
        x_mean, y_mean = x_sum / self.n, y_sum / self.n  # (..., D1), (..., D2)

        def squared_norm(product: Tensor, a: Tensor, b: Tensor) -> Tensor:
            """Return ||X'Y||² of centered x and y. product: X'Y without centering; a, b: the means."""
            return (product - self.n * a[..., :, None] * b[..., None, :]).square().sum((-2, -1))

        cka = normalize_hsic(
            squared_norm(xx, x_mean, x_mean),
            squared_norm(xy, x_mean, y_mean),
            squared_norm(yy, y_mean, y_mean),
        )
        return cka if cka.ndim else cka.item()
