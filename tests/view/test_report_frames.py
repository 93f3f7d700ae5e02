"""Pictures and charts of the page: the numbers they show are those of the fit."""

import base64
import io
import re
import zlib

import numpy as np
import pytest

from brtf import BRTF, Observations
from brtf.data.observe import observe
from brtf.datasets import synthetic, toy_video
from brtf.results.tables import largest_outliers
from pages import Page

for library in ("jinja2", "PIL"):
    pytest.importorskip(library, reason="a report needs jinja2 and pillow: pip install brtf[viz]")
from PIL import Image  # noqa: E402

from brtf.view.report import frames  # noqa: E402
from brtf.view.report.blocks import Sides  # noqa: E402
from brtf.view.report.layout import layout_of  # noqa: E402
from brtf.view.report.page import build_page  # noqa: E402
from brtf.view.report.pictures import diverging, palette, photograph, ramp, sequential  # noqa: E402
from brtf.view.report.svg import Chart, Scale, number  # noqa: E402

DATA = synthetic((12, 10, 8), 2, outliers=0.08, missing=0.25, seed=0)
FULL = DATA.low_rank + DATA.outliers + DATA.noise
HEIGHT, WIDTH = 16, 20


@pytest.fixture(scope="module")
def model():
    return BRTF(max_rank=4, random_state=0).fit(DATA.observed)


@pytest.fixture(scope="module")
def clip():
    return toy_video(height=HEIGHT, width=WIDTH, frames=9, missing=0.2, seed=0)


@pytest.fixture(scope="module")
def filmed(clip):
    return BRTF(max_rank=3, max_sweeps=500, tol=1e-3, random_state=0).fit(clip.observed).result_


def numbers_of(viewer):
    """The tensors that the page holds, as its script reads them."""
    codes = np.frombuffer(zlib.decompress(base64.b64decode(viewer.source["numbers"])), "<u2")
    codes = codes.reshape(4, *viewer.source["shape"])
    return [
        np.where(code == 65535, np.nan, low + code / 65534 * (high - low))
        for code, (low, high) in zip(codes, viewer.source["ranges"], strict=True)
    ]


def pixels(address):
    """A picture of the page as numbers (H, W, 4)."""
    raw = base64.b64decode(address.removeprefix("data:image/webp;base64,"))
    return np.asarray(Image.open(io.BytesIO(raw)).convert("RGBA")).astype(int)


class TestViewer:
    def test_frames_of_a_clip_are_its_pictures(self, clip, filmed):
        layout = layout_of(filmed.observations, (0, 1), (HEIGHT, WIDTH))
        viewer = frames.make_viewer(filmed, [filmed.observations], layout, Sides())
        scenes, frames_shown = [shown.scene for shown in viewer.pictures], viewer.source["pictures"]
        assert [scene.name for scene in scenes] == ["Data", "Low rank", "Outliers", "Standard deviation"]
        assert [shown.address for shown in viewer.pictures] == frames_shown[0]
        assert viewer.sliders[0].name == "mode 2"
        assert viewer.sliders[0].labels == viewer.source["names"] == [str(k) for k in range(9)]
        assert viewer.notes == []
        low_rank, std = filmed.low_rank(), filmed.std()
        outliers = filmed.place(filmed.outliers_at_entries())
        seen = clip.mask.all(axis=1)
        for k in (0, 8):
            data, level, outlier, spread = map(pixels, frames_shown[k])
            expected = np.clip(low_rank[:, :, k], 0, 255).reshape(HEIGHT, WIDTH, 3)
            np.testing.assert_allclose(level[..., :3], expected, atol=0.5001)  # levels are whole
            np.testing.assert_array_equal(data[..., 3].ravel() > 0, seen[:, k])
            np.testing.assert_allclose(
                data[..., :3].reshape(-1, 3)[seen[:, k]], clip.observed[seen[:, k], :, k], atol=0.5001
            )
            largest = np.take_along_axis(outliers[:, :, k], np.abs(outliers[:, :, k]).argmax(1)[:, None], 1).ravel()
            opacity = np.minimum(np.abs(largest) / scenes[2].high, 1.0)
            np.testing.assert_allclose(outlier[..., 3].ravel() / 255, opacity, atol=0.5 / 63 + 0.003)  # 64 shades
            least, most = scenes[3].low, scenes[3].high
            share = np.clip((std[:, :, k].mean(axis=1) - least) / (most - least), 0, 1)
            np.testing.assert_allclose(spread[..., 3].ravel() / 255, share, atol=0.5 / 63 + 0.003)

    def test_rows_and_columns_as_modes_are_the_same_pictures(self, clip, filmed):
        tensor = clip.observed.reshape(HEIGHT, WIDTH, 3, 9)
        found = BRTF(max_rank=3, inference="paper", tol=1e-2, random_state=0).fit(tensor).result_
        shown = [
            frames.make_viewer(fit, [fit.observations], layout_of(fit.observations, *how), Sides()).source["pictures"]
            for fit, how in ((found, ((0, 1, 2), None)), (filmed, ((0, 1), (HEIGHT, WIDTH))))
        ]
        for k in range(9):
            assert shown[0][k][0] == shown[1][k][0]

    def test_other_entries_that_are_known_fill_the_data(self, model):
        observations = model.result_.observations
        hidden = observe(FULL, ~DATA.mask)
        layout = layout_of(observations, None, None)
        missing, filled = (
            frames.make_viewer(model.result_, known, layout, Sides())
            for known in ([observations], [observations, hidden])
        )
        np.testing.assert_array_equal(np.isnan(numbers_of(missing)[0]), ~DATA.mask)
        np.testing.assert_allclose(numbers_of(filled)[0], FULL, atol=np.ptp(FULL) / 65534)
        grey = (128, 128, 128, 64)
        is_grey = (pixels(missing.pictures[0].address) == grey).all(axis=2)
        np.testing.assert_array_equal(is_grey, ~DATA.mask[:, :, 0])
        assert not (pixels(filled.pictures[0].address) == grey).all(axis=2).any()

    def test_the_page_holds_all_numbers_for_other_choices_of_modes(self, model):
        result = model.result_
        sides = Sides()
        viewer = frames.make_viewer(result, [result.observations], layout_of(result.observations, None, None), sides)
        outliers = result.place(result.outliers_at_entries())
        expected = np.where(DATA.mask, DATA.observed, np.nan), result.low_rank(), outliers, result.std()
        for shown, truth in zip(numbers_of(viewer), expected, strict=True):
            step = (np.nanmax(truth) - np.nanmin(truth)) / 65534
            np.testing.assert_allclose(shown, truth, atol=0.51 * step, rtol=0)
        assert viewer.modes == ["mode 0", "mode 1", "mode 2"]
        assert [slider.hidden for slider in viewer.sliders] == [True, True, False]
        assert [sides.numbers[key]["labels"] for key in viewer.source["sides"]] == [
            tuple(map(str, range(length))) for length in (12, 10, 8)
        ]

    def test_a_large_tensor_is_thinned_in_every_mode_and_it_is_said(self, model):
        result = model.result_
        layout = layout_of(result.observations, None, None)
        viewer = frames.make_viewer(result, [result.observations], layout, Sides(), most_bytes=6 * 6 * 6 * 32 // 3)
        assert viewer.source["shape"] == (6, 6, 6)
        assert len(viewer.source["numbers"]) <= 6 * 6 * 6 * 32 // 3 + 100
        positions = [np.round(np.linspace(0, length - 1, 6)).astype(int) for length in (12, 10, 8)]
        truth = result.low_rank()[np.ix_(*positions)]
        np.testing.assert_allclose(numbers_of(viewer)[1], truth, atol=np.ptp(truth) / 65534)
        assert viewer.notes == [
            "The pictures are drawn from 6 × 6 × 6 evenly spaced positions of 12 × 10 × 8, to keep the page small; the "
            "fit used them all."
        ]

    def test_too_many_frames_are_thinned_and_it_is_said(self, filmed):
        layout = layout_of(filmed.observations, (0, 1), (HEIGHT, WIDTH))
        viewer = frames.make_viewer(filmed, [filmed.observations], layout, Sides(), most_frames=4)
        assert viewer.source["names"] == ["0", "3", "5", "8"]
        assert viewer.notes == [
            "4 of 9 frames are embedded, evenly spread, to keep the page small; all of them were used."
        ]

    def test_pictures_stay_within_their_bytes(self, filmed):
        layout = layout_of(filmed.observations, (0, 1), (HEIGHT, WIDTH))
        viewer = frames.make_viewer(filmed, [filmed.observations], layout, Sides(), most_bytes=12000)
        frames_shown = viewer.source["pictures"]
        assert 1 <= len(frames_shown) < 9
        assert sum(len(uri) for pictures in frames_shown for uri in pictures) <= 12000
        assert "frames are embedded" in viewer.notes[-1]

    def test_large_pictures_are_sampled_and_it_is_said(self, filmed):
        layout = layout_of(filmed.observations, (0, 1), (HEIGHT, WIDTH))
        viewer = frames.make_viewer(filmed, [filmed.observations], layout, Sides(), longest_side=8)
        assert pixels(viewer.pictures[1].address).shape == (8, 8, 4)
        assert viewer.notes == ["Each picture shows 8 × 8 of 16 × 20 entries."]

    def test_a_matrix_is_one_picture(self):
        data = synthetic((20, 15), 2, missing=0.2, seed=0)
        found = BRTF(max_rank=3, random_state=0).fit(data.observed).result_
        layout = layout_of(found.observations, None, None)
        viewer = frames.make_viewer(found, [found.observations], layout, Sides())
        assert all(slider.hidden for slider in viewer.sliders)
        assert Page(build_page(found)).count("select") == 0

    def test_hardly_any_data_are_no_picture(self):
        data = synthetic((60, 50, 40), 1, missing=0.994, seed=0)
        coords = np.stack(np.nonzero(data.mask))
        found = BRTF(max_rank=2, random_state=0).fit(
            Observations.from_coords(coords, data.observed[data.mask], (60, 50, 40))
        )
        page = Page(build_page(found.result_))
        assert "Only 0.6 % of the entries were observed" in page.text
        assert "slices" not in {a.get("id") for _, a in page.elements}

    def test_pixel_factors_and_outliers_are_pictures(self, filmed):
        page = Page(build_page(filmed, image_modes=(0, 1), image_size=(HEIGHT, WIDTH)))
        assert page.count("img") == 4 + filmed.rank + 1
        assert "mode 0, the highest" not in page.text
        largest = largest_outliers(filmed, 1)
        pixel, colour, frame = largest.coords[:, 0]
        first = f"{pixel // WIDTH}, {pixel % WIDTH} {colour} {frame} {number(largest.observed[0])}"
        assert f"row, column mode 1 mode 2 observed low rank outlier probability {first}" in page.text

    @pytest.mark.parametrize(
        ("shape", "top", "photo"), [((20, 30, 3), 255, True), ((20, 30, 4), 255, False), ((20, 30, 3), 999, False)]
    )
    def test_colour_pictures_are_guessed(self, shape, top, photo):
        values = np.random.default_rng(0).uniform(0, top, shape)
        layout = layout_of(observe(values), None, None)
        assert (layout.photo, layout.colours) == (photo, 2 if photo else None)
        assert (layout.rows, layout.columns) == (0, 1)

    @pytest.mark.parametrize(
        ("modes", "size", "sentence"),
        [
            (None, (HEIGHT, WIDTH), "image_size needs image_modes"),
            ((0, 0), None, "image_modes must be different modes"),
            ((0, 5), None, "image_modes must be different modes"),
            ((0,), None, "rows, columns"),
            ((0, 1, 2), (HEIGHT, WIDTH), "pixels, colours"),
            ((0,), (10, 15), "image_size must multiply to the length 320 of mode 0, got 10 x 15"),
            ((0, 2), (HEIGHT, WIDTH), "the mode of colours must have length 3, but mode 2 has 9"),
        ],
    )
    def test_modes_that_make_no_picture_are_refused(self, clip, modes, size, sentence):
        with pytest.raises(ValueError, match=sentence):
            layout_of(observe(clip.observed), modes, size)


class TestDrawing:
    def test_numbers_read_as_people_write_them(self):
        said = {0: "0", 1234.5678: "1,235", -0.05: "−0.05", 3.2e-7: "3.2×10⁻⁷", 1e9: "10⁹", 0.1 + 0.2: "0.3"}
        assert {value: number(value) for value in said} == said
        assert [number(value) for value in (np.inf, -np.inf, np.nan)] == ["∞", "−∞", "not a number"]

    @pytest.mark.parametrize(
        "scale",
        [
            Scale(0.0, 7.3),
            Scale(-3e-300, 2e-300),
            Scale(1e9, 1e9 + 1),
            Scale(0.03, 4e5, "log"),
            Scale(-200.0, 200.0, "asinh"),
            Scale(-0.4, 0.6),
        ],
    )
    def test_scales_keep_order_and_their_ticks(self, scale):
        inside = np.linspace(scale.low, scale.high, 50)
        places = scale.place(inside)
        assert (np.diff(places) > 0).all()
        assert (places[0], places[-1]) == (0.0, 1.0)
        values = [value for value, _ in scale.ticks()]
        assert 2 <= len(values) <= 11
        assert all(scale.low <= value <= scale.high * (1 + 1e-9) for value in values)
        assert len({text for _, text in scale.ticks()}) == len(values)

    def test_lines_break_where_a_value_is_missing(self):
        chart = Chart(Scale(0, 3), Scale(0, 1), "test")
        chart.line([0, 1, 2, 3], [0.0, np.nan, 1.0, 0.5], "line one")
        (path,) = re.findall(r'class="line one" d="([^"]*)"', chart.markup())
        assert path.count("M") == 2
        assert path.count("L") == 1

    def test_marks_escape_their_words(self):
        chart = Chart(Scale(0, 1), Scale(0, 1), '"><script>', x_title="<b>", y_title="&")
        chart.mark(0.5, 0.5, "birth", "move birth", "</title><script>")
        page = Page(str(chart.markup()))
        assert page.count("script") == page.count("b") == 0

    def test_colours(self):
        values = np.array([[-2.0, -1.0, 0.0, 1.0, np.nan]])
        assert diverging(values, 1.0)[0].tolist() == [
            [38, 116, 196, 255],
            [38, 116, 196, 255],
            [222, 94, 32, 0],
            [222, 94, 32, 255],
            [128, 128, 128, 64],
        ]
        assert ramp(values, 0.0, 2.0, (1, 2, 3))[0, :, 3].tolist() == [0, 0, 0, 130, 64]
        shades = palette()
        assert shades.shape == (64, 3) and shades[0].tolist() == [68, 1, 84] and shades[-1].tolist() == [253, 231, 37]
        assert sequential(values, 0.0, 1.0)[0].tolist() == [
            *[[68, 1, 84, 255]] * 3,
            [253, 231, 37, 255],
            [128, 128, 128, 64],
        ]
        assert photograph(values, 0.0, 1.0)[0].tolist() == [[0, 0, 0, 255]] * 3 + [[255] * 4, [0, 0, 0, 0]]


def test_what_is_far_below_the_noise_is_no_outlier_in_the_picture():
    """Posterior means of 3e-5 beside noise of .3: the colours run to what would be an outlier."""
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((6, 7))
    frame = frames.Frame(numbers, numbers, 3e-5 * numbers, np.ones((6, 7)))
    assert frames.Shades.of([frame], False, 0.3).reach == pytest.approx(1.2)
    large = frame._replace(outliers=50.0 * numbers)
    assert frames.Shades.of([large], False, 0.3).reach > 50.0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_numbers_far_from_zero_use_all_colours(sign):
    kelvin = sign * np.linspace(260.0, 300.0, 42).reshape(6, 7)
    frame = frames.Frame(kelvin, kelvin, np.zeros((6, 7)), np.ones((6, 7)))
    shades = frames.Shades.of([frame], False, 0.3)
    assert shades.colours == "sequential"
    assert sorted(abs(end) for end in (shades.low, shades.high)) == pytest.approx([260.0, 300.0], abs=0.2)
    near = frames.Shades.of([frame._replace(data=kelvin - sign * 250, low_rank=kelvin - sign * 250)], False, 0.3)
    assert (near.low == 0.0) if sign > 0 else (near.colours == "diverging")


def test_non_negative_data_have_sequential_colours_whatever_their_noise():
    rng = np.random.default_rng(0)
    level = rng.uniform(0.0, 5.0, (6, 7))
    noisy = level + 0.1 * rng.standard_normal((6, 7))

    def colours(low_rank, data, noise_sd):
        frame = frames.Frame(data, low_rank, np.zeros((6, 7)), np.ones((6, 7)))
        return frames.Shades.of([frame], False, noise_sd).colours

    assert colours(level, np.abs(noisy), 0.1) == "sequential"
    assert colours(level - 0.05, noisy - 0.05, 0.1) == "sequential"
    assert colours(level - 2.5, noisy - 2.5, 0.1) == "diverging"
    assert colours(np.zeros((6, 7)), 0.1 * rng.standard_normal((6, 7)), 0.1) == "diverging"


def test_slightly_negative_data_and_unknown_rows_leave_the_colours_to_the_others():
    levels = np.linspace(0, 900, 400).reshape(20, 20)
    levels[0, :3] = -5.0  # of hundreds: the data are positive but for these
    std = np.full((20, 20), 0.5)
    std[:3] = 1300.0  # rows of which nothing was seen
    frame = frames.Frame(levels, levels, np.zeros((20, 20)), std)
    shades = frames.Shades.of([frame], False, 0.1)
    assert shades.colours == "sequential"
    assert shades.most == pytest.approx(5.0)
    assert (
        frames.Shades.of([frame._replace(low_rank=levels - 450, data=levels - 450)], False, 0.1).colours == "diverging"
    )
