//! A picture of figures over packet size, with a line for each variant (SVG 1.1).

use std::fmt::Write as _;

use super::case::{Case, Size};
use super::report::Series;
use crate::statistics::Spread;

/// Colours of the variants: distinguishable to most eyes and in print.
pub(super) const COLOURS: [&str; 8] =
    ["#0b6e99", "#c8452d", "#2e8540", "#8e4585", "#b8860b", "#4b4b4b", "#d16ba5", "#3ba7a0"];
/// Mixes have no single length; each has a strip instead.
pub(crate) const STRIPS: [&str; 2] = ["IMIX", "RANDOM"];
const DASHES: [&str; 2] = ["none", "7 4"];

/// Lengths in pixels.
pub(super) const LEFT: f64 = 70.0;
pub(super) const TOP: f64 = 64.0;
pub(super) const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 380.0;
const MIX_WIDTH: f64 = 70.0;
pub(super) const LEGEND_GAP: f64 = 28.0;
pub(super) const LEGEND_LINE: f64 = 22.0;
pub(super) const CHARACTER: f64 = 6.8;

/// One line of the picture.
pub(crate) struct Line {
    pub(crate) name: String,
    /// Lines of one colour differ in their dashes.
    pub(crate) colour: usize,
    pub(crate) dash: usize,
    /// Bytes of a packet and the figure, sorted by bytes.
    pub(crate) points: Vec<(usize, Spread)>,
    /// By index of [`STRIPS`].
    pub(crate) mixes: [Option<Spread>; STRIPS.len()],
}

/// Axes with lines, and a legend beside them.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    /// What the axes show, with units.
    pub(crate) across: String,
    pub(crate) up: String,
    pub(crate) extent: Extent,
    pub(crate) lines: Vec<Line>,
}

/// Where axes begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Both at zero.
    Zero,
    /// Upwards at zero, across at the first point.
    FirstPoint,
    /// Both where the points begin: small differences show, and no ratio of heights does.
    Points,
    /// Upwards at zero, across at the first point, where equal steps double what is there.
    Doubling,
}

/// A part of a picture.
pub(crate) struct Drawn {
    pub(super) body: String,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Line {
    fn top(&self) -> f64 {
        let mixes = self.mixes.iter().flatten();
        self.points.iter().map(|(_, rate)| rate).chain(mixes).map(|rate| rate.highest).fold(0.0, f64::max)
    }

    fn bottom(&self) -> f64 {
        let mixes = self.mixes.iter().flatten();
        self.points
            .iter()
            .map(|(_, rate)| rate)
            .chain(mixes)
            .map(|rate| rate.lowest)
            .fold(f64::INFINITY, f64::min)
    }

    /// The sort key of the legend: the rate at the line's right end.
    fn end(&self) -> f64 {
        let mix = || self.mixes.iter().flatten().next();
        self.points.last().map(|(_, rate)| rate).or_else(mix).map_or(0.0, |rate| rate.median)
    }
}

/// One line per variant and direction. A variant (suite, engine, number of SAs, formation) has one colour, a
/// direction one dash pattern.
pub(super) fn lines(series: &[Series]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut variants: Vec<String> = Vec::new();
    let many_sas = series.iter().any(|other| other.case.scale() != series[0].case.scale());
    let many_orders = series.iter().any(|other| other.case.order != series[0].case.order);
    for series in series {
        let Case { suites, way, size, order, .. } = series.case;
        let sas = if many_sas { format!(", {}", series.case.scale()) } else { String::new() };
        let order = if many_orders { format!(", formation {}", order.name()) } else { String::new() };
        let variant = format!("{suites}, {}{sas}{order}", series.engine);
        let colour = variants.iter().position(|known| *known == variant).unwrap_or_else(|| {
            variants.push(variant.clone());
            variants.len() - 1
        });
        let name = format!("{variant}, {}", way.name());
        let index = lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
            lines.push(Line {
                name,
                colour,
                dash: way as usize,
                points: Vec::new(),
                mixes: [None; STRIPS.len()],
            });
            lines.len() - 1
        });
        match size {
            Size::Bytes(bytes) => lines[index].points.push((bytes, series.gbit_s())),
            Size::Imix => lines[index].mixes[0] = Some(series.gbit_s()),
            Size::Random => lines[index].mixes[1] = Some(series.gbit_s()),
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by_key(|(bytes, _)| *bytes));
    sort(&mut lines);
    lines
}

/// Puts lines into the order of their right ends, as the legend has them.
pub(crate) fn sort(lines: &mut [Line]) {
    lines.sort_by(|a, b| b.end().total_cmp(&a.end()));
}

/// The smallest 1, 2 or 5 times a power of ten that fits at most `steps` times into `most`.
fn step(most: f64, steps: f64) -> f64 {
    let least = (most / steps).max(1e-6);
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= least * 0.999)
        .unwrap_or(least)
}

/// Maps values to positions in the picture.
struct Axes {
    /// First and last of those across, and what is between two labels.
    bytes: [f64; 2],
    bytes_step: f64,
    /// Whether labels double instead, and equal steps with them.
    doubles: bool,
    value: [f64; 2],
    value_step: f64,
    /// Which of [`STRIPS`] follow the lengths, from left to right.
    strips: Vec<usize>,
}

impl Axes {
    fn of(lines: &[Line], extent: Extent) -> Self {
        let across = || lines.iter().flat_map(|line| &line.points).map(|(bytes, _)| *bytes);
        let (first, last) = (across().min().unwrap_or(0) as f64, across().max().unwrap_or(0) as f64);
        let top = lines.iter().map(Line::top).fold(0.0, f64::max).max(0.1);
        let bottom = lines.iter().map(Line::bottom).fold(f64::INFINITY, f64::min);
        let (first, last) = match extent {
            Extent::Zero => (0.0, last.max(100.0)),
            Extent::FirstPoint | Extent::Points => (first, last.max(first + 1.0)),
            Extent::Doubling => (first.max(1.0), last.max(2.0 * first.max(1.0))),
        };
        let bottom = if extent == Extent::Points && bottom < top { bottom } else { 0.0 };
        let mut bytes_step = step(last - first, 8.0);
        if extent != Extent::Zero {
            bytes_step = bytes_step.max(1.0);
        }
        let value_step = step(top - bottom, 8.0);
        let whole = |value: f64, step: f64| (value / step).ceil() * step;
        let begun = |value: f64, step: f64| (value / step).floor() * step;
        let end = if extent == Extent::Zero { whole(last, bytes_step / 2.0) } else { last };
        let doubles = extent == Extent::Doubling;
        Self {
            bytes: [if doubles { first } else { begun(first, bytes_step) }, end],
            bytes_step,
            doubles,
            value: [begun(bottom, value_step), whole(top, value_step)],
            value_step,
            strips: (0..STRIPS.len()).filter(|&n| lines.iter().any(|line| line.mixes[n].is_some())).collect(),
        }
    }

    fn x(&self, bytes: f64) -> f64 {
        let [first, last] = self.bytes;
        let share = match self.doubles {
            true => (bytes.max(first) / first).log2() / (last / first).log2(),
            false => (bytes - first) / (last - first),
        };
        LEFT + share * WIDTH
    }

    /// What labels are at, across.
    fn labels(&self) -> Vec<f64> {
        let [first, last] = self.bytes;
        let at = |n: f64| if self.doubles { first * n.exp2() } else { first + n * self.bytes_step };
        (0..=1000).map(|n| at(f64::from(n))).take_while(|v| *v <= last + self.bytes_step * 1e-3).collect()
    }

    fn y(&self, value: f64) -> f64 {
        let [bottom, top] = self.value;
        TOP + HEIGHT - (value - bottom) / (top - bottom) * HEIGHT
    }

    /// Centres of the strips.
    fn strips(&self) -> impl Iterator<Item = (usize, f64)> {
        let middles = (0..).map(|n| LEFT + WIDTH + (f64::from(n) + 0.5) * MIX_WIDTH);
        self.strips.iter().copied().zip(middles)
    }

    fn right(&self) -> f64 {
        LEFT + WIDTH + self.strips.len() as f64 * MIX_WIDTH
    }

    fn draw(&self, picture: &mut String, across: &str, up: &str) {
        let (bottom, right) = (TOP + HEIGHT, self.right());
        let count = |[first, last]: [f64; 2], step: f64| {
            let labels = (0..=1000).map(f64::from).map(move |n| first + n * step);
            labels.take_while(move |v| *v <= last + step * 1e-3)
        };
        for value in count(self.value, self.value_step) {
            let (y, label) = (self.y(value), tick(value, self.value_step));
            let _ = writeln!(
                picture,
                r##"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#e3e3e3"/>"##
            );
            let _ = writeln!(
                picture,
                r#"<text x="{}" y="{:.1}" text-anchor="end">{label}</text>"#,
                LEFT - 8.0,
                y + 4.0
            );
        }
        for bytes in self.labels() {
            let x = self.x(bytes);
            let _ = writeln!(
                picture,
                r##"<line x1="{x:.1}" y1="{bottom}" x2="{x:.1}" y2="{}" stroke="#444"/>"##,
                bottom + 5.0
            );
            let _ = writeln!(
                picture,
                r#"<text x="{x:.1}" y="{}" text-anchor="middle">{bytes:.0}</text>"#,
                bottom + 20.0
            );
        }
        for (strip, middle) in self.strips() {
            let (x, name) = (middle - MIX_WIDTH / 2.0, STRIPS[strip]);
            let _ = writeln!(
                picture,
                r##"<line x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}" stroke="#bbb" stroke-dasharray="2 3"/>"##
            );
            let _ = writeln!(
                picture,
                r#"<text x="{middle}" y="{}" text-anchor="middle">{name}</text>"#,
                bottom + 20.0
            );
        }
        let _ =
            writeln!(picture, r##"<path d="M{LEFT},{TOP} V{bottom} H{right}" fill="none" stroke="#444"/>"##);
        let middle = LEFT + WIDTH / 2.0;
        let _ = writeln!(
            picture,
            r#"<text x="{middle}" y="{}" text-anchor="middle">{}</text>"#,
            bottom + 44.0,
            escaped(across)
        );
        let middle = TOP + HEIGHT / 2.0;
        let _ = writeln!(
            picture,
            r#"<text transform="translate(22 {middle}) rotate(-90)" text-anchor="middle">{}</text>"#,
            escaped(up)
        );
    }
}

/// A label as precise as the step between labels requires.
fn tick(value: f64, step: f64) -> String {
    if step >= 1.0 {
        format!("{value:.0}")
    } else if step >= 0.1 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Median and spread at one position.
fn mark(picture: &mut String, axes: &Axes, x: f64, rate: &Spread, line: &Line) {
    let (colour, y) = (COLOURS[line.colour % COLOURS.len()], axes.y(rate.median));
    let (lowest, highest) = (axes.y(rate.lowest), axes.y(rate.highest));
    let fill = if line.dash == 0 { colour } else { "#ffffff" };
    let _ = writeln!(
        picture,
        r#"<line x1="{x:.1}" y1="{lowest:.1}" x2="{x:.1}" y2="{highest:.1}" stroke="{colour}" stroke-opacity="0.5"/>"#
    );
    let _ = writeln!(
        picture,
        r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{fill}" stroke="{colour}" stroke-width="1.5"/>"#
    );
}

fn draw_line(picture: &mut String, axes: &Axes, line: &Line) {
    let (colour, dash) = (COLOURS[line.colour % COLOURS.len()], DASHES[line.dash % DASHES.len()]);
    let point =
        |(bytes, rate): &(usize, Spread)| format!("{:.1},{:.1}", axes.x(*bytes as f64), axes.y(rate.median));
    let path: Vec<String> = line.points.iter().map(point).collect();
    if path.len() > 1 {
        let path = path.join(" ");
        let _ = writeln!(
            picture,
            r#"<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>"#
        );
    }
    for (bytes, rate) in &line.points {
        mark(picture, axes, axes.x(*bytes as f64), rate, line);
    }
    for (strip, x) in axes.strips() {
        if let Some(rate) = &line.mixes[strip] {
            mark(picture, axes, x, rate, line);
        }
    }
}

fn draw_legend(picture: &mut String, axes: &Axes, lines: &[Line]) {
    let x = axes.right() + LEGEND_GAP;
    for (row, line) in (0..).map(f64::from).zip(lines) {
        let (colour, dash) = (COLOURS[line.colour % COLOURS.len()], DASHES[line.dash % DASHES.len()]);
        let y = TOP + 10.0 + row * LEGEND_LINE;
        let fill = if line.dash == 0 { colour } else { "#ffffff" };
        let (end, middle, text) = (x + 34.0, x + 17.0, x + 44.0);
        let _ = writeln!(
            picture,
            r#"<line x1="{x}" y1="{y}" x2="{end}" y2="{y}" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>"#
        );
        let _ = writeln!(
            picture,
            r#"<circle cx="{middle}" cy="{y}" r="3.5" fill="{fill}" stroke="{colour}" stroke-width="1.5"/>"#
        );
        let _ = writeln!(picture, r#"<text x="{text}" y="{}">{}</text>"#, y + 4.0, escaped(&line.name));
    }
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The picture: panels, one above the other.
pub(crate) fn svg(panels: &[Panel]) -> String {
    stacked(&panels.iter().map(draw).collect::<Vec<_>>())
}

/// Parts of a picture, one above the other.
pub(super) fn stacked(parts: &[Drawn]) -> String {
    let (mut width, mut top, mut all) = (0.0_f64, 0.0, String::new());
    for part in parts {
        let _ = writeln!(all, "<g transform=\"translate(0 {top})\">\n{}</g>", part.body);
        (width, top) = (width.max(part.width), top + part.height);
    }
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}">
<rect width="100%" height="100%" fill="#ffffff"/>
<g font-family="'DejaVu Sans', Verdana, Helvetica, sans-serif" font-size="12" fill="#222222">
{all}</g>
</svg>
"##
    )
}

/// Title and subtitle of a part.
pub(super) fn heading(title: &str, subtitle: &str) -> String {
    format!(
        r##"<text x="{LEFT}" y="26" font-size="16" font-weight="bold">{}</text>
<text x="{LEFT}" y="46" fill="#666666">{}</text>
"##,
        escaped(title),
        escaped(subtitle)
    )
}

/// A panel.
pub(super) fn draw(panel: &Panel) -> Drawn {
    let Panel { title, subtitle, across, up, extent, lines } = panel;
    let axes = Axes::of(lines, *extent);
    let longest = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    let width = (axes.right() + LEGEND_GAP + 44.0 + longest as f64 * CHARACTER + 16.0).ceil();
    let legend_bottom = TOP + lines.len() as f64 * LEGEND_LINE + 20.0;
    let height = (TOP + HEIGHT + 62.0).max(legend_bottom).ceil();
    let mut picture = heading(title, subtitle);
    axes.draw(&mut picture, across, up);
    // The highest line is drawn last, so that its marks are on top.
    lines.iter().rev().for_each(|line| draw_line(&mut picture, &axes, line));
    draw_legend(&mut picture, &axes, lines);
    Drawn { body: picture, width, height }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, dash: usize, points: &[(usize, f64)], mix: Option<f64>) -> Line {
        let points = points.iter().map(|&(bytes, rate)| (bytes, Spread::of([rate]))).collect();
        let mixes = [mix, mix.filter(|_| dash > 0)].map(|mix| mix.map(|rate| Spread::of([rate])));
        Line { name: name.to_owned(), colour: 0, dash, points, mixes }
    }

    fn panel(lines: Vec<Line>) -> Panel {
        let [title, subtitle, across, up] = ["t", "s", "x", "y"].map(str::to_owned);
        Panel { title, subtitle, across, up, extent: Extent::Zero, lines }
    }

    fn of_one(lines: Vec<Line>) -> String {
        svg(&[panel(lines)])
    }

    /// The elements of a document in which every element is closed; panics otherwise.
    fn elements(document: &str) -> Vec<String> {
        let (mut open, mut seen) = (Vec::new(), Vec::new());
        for part in document.split('<').skip(1) {
            let (tag, text) = part.split_once('>').expect("every < has its >");
            assert!(!text.contains('>'), "a > that nothing has opened: {part}");
            assert_eq!(tag.matches('"').count() % 2, 0, "a quote that is not closed: {tag}");
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
            if tag.starts_with('/') {
                assert_eq!(open.pop().as_deref(), Some(name), "closed in the wrong order");
            } else {
                seen.push(name.to_owned());
                if !tag.ends_with('/') {
                    open.push(name.to_owned());
                }
            }
        }
        assert!(open.is_empty(), "not closed: {open:?}");
        seen
    }

    #[test]
    fn a_picture_is_well_formed_and_has_a_line_for_each_variant() {
        let lines = [
            line("a <fast> & good one", 0, &[(64, 4.0), (1420, 44.0)], Some(19.0)),
            line("another", 1, &[(64, 3.0), (1420, 38.0)], Some(15.0)),
        ];
        let picture = of_one(lines.into());
        let elements = elements(&picture);
        let count = |name: &str| elements.iter().filter(|element| *element == name).count();
        assert_eq!((count("svg"), count("polyline")), (1, 2));
        // Seven points and two in the legend.
        assert_eq!(count("circle"), 9, "{picture}");
        assert!(picture.contains("a &lt;fast&gt; &amp; good one</text>") && picture.contains(">IMIX</text>"));
        assert!(picture.contains(">RANDOM</text>"));
    }

    #[test]
    fn one_size_or_only_the_mix_makes_a_picture_too() {
        for lines in [vec![line("a", 0, &[(64, 4.0)], None)], vec![line("a", 0, &[], Some(0.01))], Vec::new()]
        {
            let picture = of_one(lines);
            assert!(!elements(&picture).contains(&"polyline".to_owned()));
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }

    #[test]
    fn everything_is_inside_the_picture() {
        let lines: Vec<Line> =
            (0..40).map(|n| line(&format!("line {n}"), n % 2, &[(16_000, 400.0)], Some(1.0))).collect();
        let picture = of_one(lines);
        let attribute = |element: &str, name: &str| -> Option<f64> {
            element
                .split_once(&format!(" {name}=\""))
                .and_then(|(_, rest)| rest.split('"').next()?.parse().ok())
        };
        let (width, height) = (attribute(&picture, "width").unwrap(), attribute(&picture, "height").unwrap());
        for element in picture.split('<') {
            assert!(
                ["x", "x1", "x2", "cx"].iter().filter_map(|n| attribute(element, n)).all(|x| x <= width),
                "{element}"
            );
            assert!(
                ["y", "y1", "y2", "cy"].iter().filter_map(|n| attribute(element, n)).all(|y| y <= height),
                "{element}"
            );
        }
    }

    #[test]
    fn panels_are_one_above_the_other() {
        let one = || panel(vec![line("a", 0, &[(64, 4.0), (1420, 44.0)], None)]);
        let heights = [svg(&[one()]), svg(&[one(), one()])].map(|picture| {
            elements(&picture);
            let height = picture.split_once(" height=\"").unwrap().1.split('"').next().unwrap();
            height.parse::<f64>().unwrap()
        });
        assert!((2.0 * heights[0] - heights[1]).abs() < 0.1, "{heights:?}");
        assert!(svg(&[one(), one()]).contains(&format!("translate(0 {})", heights[0])));
    }

    #[test]
    fn axes_begin_at_zero_or_where_the_points_do() {
        let lines = |points: &[(usize, f64)]| vec![line("a", 0, points, None)];
        let ends = |extent| {
            let axes = Axes::of(&lines(&[(1150, 302.0), (1450, 391.0)]), extent);
            (axes.bytes, axes.value)
        };
        assert_eq!(ends(Extent::Zero), ([0.0, 1500.0], [0.0, 400.0]));
        assert_eq!(ends(Extent::FirstPoint), ([1150.0, 1450.0], [0.0, 400.0]));
        assert_eq!(ends(Extent::Points), ([1150.0, 1450.0], [300.0, 400.0]));
        for points in [&[][..], &[(5, 2.0)], &[(5, 0.0), (6, 0.0)]] {
            for extent in [Extent::FirstPoint, Extent::Points] {
                let one = Panel { extent, ..panel(lines(points)) };
                let picture = svg(&[one]);
                assert!(!picture.contains("NaN") && !picture.contains("inf"), "{points:?}: {picture}");
            }
        }
    }

    #[test]
    fn equal_steps_may_double_what_is_across() {
        let lines = [line("a", 0, &[(64, 1.0), (1024, 2.0), (32_768, 3.0)], None)];
        let axes = Axes::of(&lines, Extent::Doubling);
        let labels = [64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0];
        assert_eq!(axes.labels(), labels);
        assert_eq!((axes.x(64.0), axes.x(32_768.0)), (LEFT, LEFT + WIDTH));
        let steps: Vec<f64> = labels.windows(2).map(|pair| axes.x(pair[1]) - axes.x(pair[0])).collect();
        assert!(steps.iter().all(|step| (step - WIDTH / 9.0).abs() < 1e-9), "{steps:?}");
        for points in [&[][..], &[(5, 2.0)], &[(0, 1.0), (3, 1.0)]] {
            let lines = vec![line("a", 0, points, None)];
            let picture = svg(&[Panel { extent: Extent::Doubling, ..panel(lines) }]);
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{points:?}: {picture}");
        }
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([44.0, 8.0, 1420.0, 0.3].map(|most| step(most, 8.0)), [10.0, 1.0, 200.0, 0.05]);
    }
}
