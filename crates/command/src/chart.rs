//! Charts of simulated figures: the same few shapes as SVG and as PNG. Text in the PNG is
//! an 8 by 8 bitmap font, doubled; nothing depends on what fonts a machine has.

use font8x8::legacy::BASIC_LEGACY;
use holdfast_base::{Error, Result};

const WIDTH: i32 = 1280;
const HEIGHT: i32 = 640;
/// Around the area where values are drawn: left, right, top, bottom.
const MARGINS: (i32, i32, i32, i32) = (110, 30, 100, 90);
const COLOURS: [[u8; 3]; 8] = [
    [31, 119, 180],
    [255, 127, 14],
    [44, 160, 44],
    [214, 39, 40],
    [148, 103, 189],
    [140, 86, 75],
    [227, 119, 194],
    [127, 127, 127],
];
const BLACK: [u8; 3] = [0, 0, 0];
const GREY: [u8; 3] = [205, 205, 205];
/// Of one character in the PNG.
const GLYPH: i32 = 8;

/// Values over named places, one series a colour.
pub struct Chart {
    /// Above the picture, in the middle.
    pub title: String,
    /// What the values are, and in what unit.
    pub y_label: String,
    /// Names along the horizontal axis; each series has a value for each of them.
    pub places: Vec<String>,
    /// `None` where a series has no value.
    pub series: Vec<(String, Vec<Option<f64>>)>,
    /// Connected by lines, or bars beside each other.
    pub lines: bool,
    /// Horizontal lines: what the values are held against.
    pub marks: Vec<(String, f64)>,
    /// Where the axis ends, if the largest value would hide the others.
    pub y_max: Option<f64>,
    /// Each step of the axis is ten times the one below.
    pub log: bool,
}

enum Shape {
    Bar {
        x: i32,
        y: i32,
        width: i32,
        height: i32,
        colour: [u8; 3],
    },
    Line {
        from: (i32, i32),
        to: (i32, i32),
        colour: [u8; 3],
        dashed: bool,
    },
    /// Its middle, or its start or end.
    Text {
        x: i32,
        y: i32,
        text: String,
        anchor: Anchor,
    },
}

#[derive(Clone, Copy, PartialEq)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// Where values are, from the bottom up.
struct Axis {
    y_min: f64,
    y_max: f64,
    log: bool,
}

impl Axis {
    fn y(&self, value: f64) -> i32 {
        let (_, _, top, bottom) = MARGINS;
        let share = match self.log {
            true => (value / self.y_min).ln() / (self.y_max / self.y_min).ln(),
            false => value / self.y_max,
        };
        let share = share.clamp(0.0, 1.0);
        HEIGHT - bottom - ((HEIGHT - top - bottom) as f64 * share) as i32
    }

    /// A grey line at each step, with its value.
    fn draw(&self, shapes: &mut Vec<Shape>) {
        let (left, right, _, _) = MARGINS;
        let even = (0..=5).map(|step| self.y_max * f64::from(step) / 5.0);
        let tenfold = (-3..12).map(|power| 10f64.powi(power));
        let steps: Vec<f64> = match self.log {
            true => tenfold.filter(|step| (self.y_min..=self.y_max).contains(step)).collect(),
            false => even.collect(),
        };
        for value in steps {
            let (from, to) = ((left, self.y(value)), (WIDTH - right, self.y(value)));
            shapes.push(Shape::Line { from, to, colour: GREY, dashed: false });
            shapes.push(text(left - 8, self.y(value), &short(value), Anchor::End));
        }
    }
}

fn text(x: i32, y: i32, text: &str, anchor: Anchor) -> Shape {
    Shape::Text { x, y, text: text.into(), anchor }
}

impl Chart {
    /// The power of ten below every value.
    fn smallest(&self) -> f64 {
        let values = self.series.iter().flat_map(|(_, values)| values.iter().flatten().copied());
        let least = values.filter(|value| *value > 0.0).fold(f64::MAX, f64::min);
        10f64.powf(least.min(1e12).log10().floor())
    }

    fn shapes(&self) -> Vec<Shape> {
        let axis = self.axis();
        let mut shapes = vec![
            text(WIDTH / 2, 22, &self.title, Anchor::Middle),
            text(8, 78, &self.y_label, Anchor::Start),
        ];
        axis.draw(&mut shapes);
        self.draw_names(&mut shapes);
        for (index, (_, values)) in self.series.iter().enumerate() {
            match self.lines {
                true => self.draw_line(&axis, index, values, &mut shapes),
                false => self.draw_bars(&axis, index, values, &mut shapes),
            }
        }
        self.draw_marks(&axis, &mut shapes);
        shapes
    }

    fn axis(&self) -> Axis {
        let values = self.series.iter().flat_map(|(_, values)| values.iter().flatten().copied());
        let largest = values.chain(self.marks.iter().map(|(_, v)| *v)).fold(1e-9, f64::max);
        let y_max = self.y_max.unwrap_or(largest * 1.08);
        let y_min = if self.log { self.smallest() } else { 0.0 };
        Axis { y_min, y_max, log: self.log }
    }

    /// Pixels of one place.
    fn place_width(&self) -> i32 {
        let (left, right, _, _) = MARGINS;
        (WIDTH - left - right) / self.places.len().max(1) as i32
    }

    /// What the colours mean, and what the places are.
    fn draw_names(&self, shapes: &mut Vec<Shape>) {
        let (left, _, _, bottom) = MARGINS;
        let mut at = left;
        for (index, (name, _)) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            shapes.push(Shape::Bar { x: at, y: 44, width: 14, height: 14, colour });
            shapes.push(text(at + 20, 51, name, Anchor::Start));
            at += 40 + name.len() as i32 * GLYPH;
        }
        let wide = self.place_width();
        for (place, name) in self.places.iter().enumerate() {
            let middle = left + wide * place as i32 + wide / 2;
            // Neighbours on two rows, so that long names do not run into each other.
            let row = HEIGHT - bottom + 18 + 20 * (place as i32 % 2);
            shapes.push(text(middle, row, name, Anchor::Middle));
        }
    }

    fn draw_line(
        &self,
        axis: &Axis,
        index: usize,
        values: &[Option<f64>],
        shapes: &mut Vec<Shape>,
    ) {
        let (colour, wide) = (COLOURS[index % COLOURS.len()], self.place_width());
        let mut last: Option<(i32, i32)> = None;
        for (place, value) in values.iter().enumerate() {
            let Some(value) = value else {
                last = None;
                continue;
            };
            let point = (MARGINS.0 + wide * place as i32 + wide / 2, axis.y(*value));
            if let Some(from) = last {
                shapes.push(Shape::Line { from, to: point, colour, dashed: false });
            }
            let (x, y) = (point.0 - 4, point.1 - 4);
            shapes.push(Shape::Bar { x, y, width: 8, height: 8, colour });
            last = Some(point);
        }
    }

    fn draw_bars(
        &self,
        axis: &Axis,
        index: usize,
        values: &[Option<f64>],
        shapes: &mut Vec<Shape>,
    ) {
        let (left, _, _, bottom) = MARGINS;
        let (colour, wide) = (COLOURS[index % COLOURS.len()], self.place_width());
        let width = (wide * 8 / 10 / self.series.len().max(1) as i32).max(2);
        for (place, value) in values.iter().enumerate() {
            let Some(value) = value else { continue };
            let x = left + wide * place as i32 + wide / 10 + width * index as i32;
            let (top, height) = (axis.y(*value), HEIGHT - bottom - axis.y(*value));
            shapes.push(Shape::Bar { x, y: top, width: width - 1, height, colour });
            shapes.push(text(x + width / 2, top - 9, &short(*value), Anchor::Middle));
        }
    }

    fn draw_marks(&self, axis: &Axis, shapes: &mut Vec<Shape>) {
        let (left, right, _, _) = MARGINS;
        let lowest = self.marks.iter().fold(f64::INFINITY, |lowest, (_, value)| lowest.min(*value));
        for (name, value) in &self.marks {
            // Two that are close do not write over each other.
            let beside = if self.marks.len() > 1 && *value == lowest { 16 } else { -8 };
            let (from, to) = ((left, axis.y(*value)), (WIDTH - right, axis.y(*value)));
            shapes.push(Shape::Line { from, to, colour: BLACK, dashed: true });
            let label = format!("{name} {}", short(*value));
            shapes.push(text(WIDTH - right, axis.y(*value) + beside, &label, Anchor::End));
        }
    }

    /// The chart as an SVG document.
    pub fn svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"monospace\" font-size=\"13\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        let rgb = |[r, g, b]: [u8; 3]| format!("rgb({r},{g},{b})");
        for shape in self.shapes() {
            svg += &match shape {
                Shape::Bar { x, y, width, height, colour } => format!(
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{}\"/>\n",
                    rgb(colour)
                ),
                Shape::Line { from, to, colour, dashed } => format!(
                    "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\"{}/>\n",
                    from.0,
                    from.1,
                    to.0,
                    to.1,
                    rgb(colour),
                    if dashed { " stroke-dasharray=\"6 4\"" } else { "" }
                ),
                Shape::Text { x, y, text, anchor } => {
                    let anchor = match anchor {
                        Anchor::Start => "start",
                        Anchor::Middle => "middle",
                        Anchor::End => "end",
                    };
                    let text = text.replace('&', "&amp;").replace('<', "&lt;");
                    let y = y + 4;
                    format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>\n")
                }
            };
        }
        svg + "</svg>\n"
    }

    /// The same as a PNG.
    pub fn png(&self) -> Result<Vec<u8>> {
        let mut canvas = Canvas { rgb: vec![255; (WIDTH * HEIGHT * 3) as usize] };
        for shape in self.shapes() {
            canvas.draw(&shape);
        }
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, WIDTH as u32, HEIGHT as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let failed = |e: png::EncodingError| Error::bug(format!("draw a chart: {e}"));
        let mut writer = encoder.write_header().map_err(failed)?;
        writer.write_image_data(&canvas.rgb).map_err(failed)?;
        writer.finish().map_err(failed)?;
        Ok(bytes)
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

struct Canvas {
    rgb: Vec<u8>,
}

impl Canvas {
    fn dot(&mut self, x: i32, y: i32, colour: [u8; 3]) {
        if (0..WIDTH).contains(&x) && (0..HEIGHT).contains(&y) {
            let at = ((y * WIDTH + x) * 3) as usize;
            self.rgb[at..at + 3].copy_from_slice(&colour);
        }
    }

    fn draw(&mut self, shape: &Shape) {
        match shape {
            Shape::Bar { x, y, width, height, colour } => {
                for y in *y..*y + height {
                    (*x..*x + width).for_each(|x| self.dot(x, y, *colour));
                }
            }
            Shape::Line { from, to, colour, dashed } => {
                let steps = (to.0 - from.0).abs().max((to.1 - from.1).abs()).max(1);
                for step in 0..=steps {
                    if !dashed || step % 10 < 6 {
                        let x = from.0 + (to.0 - from.0) * step / steps;
                        let y = from.1 + (to.1 - from.1) * step / steps;
                        self.dot(x, y, *colour);
                        self.dot(x, y + 1, *colour);
                    }
                }
            }
            Shape::Text { x, y, text, anchor } => {
                let width = text.chars().count() as i32 * GLYPH;
                let mut x = match anchor {
                    Anchor::Start => *x,
                    Anchor::Middle => x - width / 2,
                    Anchor::End => x - width,
                };
                for c in text.chars() {
                    let rows = BASIC_LEGACY.get(c as usize).copied().unwrap_or_default();
                    for (row, bits) in rows.into_iter().enumerate() {
                        for column in (0..8).filter(|column| bits & 1 << column != 0) {
                            self.dot(x + column, y - GLYPH / 2 + row as i32, BLACK);
                        }
                    }
                    x += GLYPH;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_becomes_svg_and_png() {
        let chart = Chart {
            title: "a < b".into(),
            y_label: "times ideal".into(),
            places: vec!["x".into(), "y".into()],
            series: vec![("ours".into(), vec![Some(1.1), None])],
            lines: false,
            marks: vec![("ideal".into(), 1.0)],
            y_max: None,
            log: false,
        };
        let svg = chart.svg();
        assert!(svg.contains("a &lt; b") && svg.contains("1.10") && svg.contains("ideal 1.00"));
        let log =
            Chart { log: true, series: vec![("a".into(), vec![Some(3.0), Some(400.0)])], ..chart };
        let steps = log.svg();
        assert!(steps.contains(">1.00<") && steps.contains(">10.0<") && steps.contains(">100<"));
        let chart =
            Chart { log: false, series: vec![("ours".into(), vec![Some(1.1), None])], ..log };
        let png = chart.png().unwrap();
        let decoder = png::Decoder::new(std::io::Cursor::new(&png));
        let mut reader = decoder.read_info().unwrap();
        let mut rgb = vec![0; (WIDTH * HEIGHT * 3) as usize];
        reader.next_frame(&mut rgb).unwrap();
        assert!(
            rgb.chunks(3).filter(|pixel| *pixel == COLOURS[0]).count() > 1000,
            "a bar is drawn"
        );
    }
}
