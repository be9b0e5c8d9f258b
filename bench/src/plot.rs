//! Latency and bandwidth over message size, as a picture.

use super::metrics::Unit;
use plotters::prelude::*;

/// A line of a plot.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) unit: Unit,
    pub(super) name: &'static str,
    /// Message size and value.
    pub(super) points: Vec<(u64, f64)>,
}

const WIDTH: u32 = 1100;
const HEIGHT: u32 = 460;

/// Two plots side by side.
pub(super) fn svg(curves: &[Curve]) -> crate::Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE).map_err(|e| e.to_string())?;
        for (half, unit) in area.split_evenly((1, 2)).iter().zip([Unit::Us, Unit::GBs]) {
            let of_unit: Vec<_> = curves.iter().filter(|c| c.unit == unit).collect();
            draw(half, unit, &of_unit).map_err(|e| format!("cannot draw: {e}"))?;
        }
        area.present().map_err(|e| e.to_string())?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(area: &Area<'_>, unit: Unit, curves: &[&Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let values = || curves.iter().flat_map(|c| &c.points);
    let sizes = values().map(|p| p.0).min().unwrap_or(1)..values().map(|p| p.0).max().unwrap_or(2);
    let most = values().map(|p| p.1).fold(0.0, f64::max) * 1.2;
    let least = values().map(|p| p.1).fold(f64::INFINITY, f64::min) * 0.8;
    let range = least.max(1e-3)..most.max(1e-2);
    let mut chart = ChartBuilder::on(area)
        .caption(axis(unit), ("sans-serif", 17))
        .margin(14)
        .x_label_area_size(34)
        .y_label_area_size(52)
        .build_cartesian_2d(
            (sizes.start as f64..sizes.end as f64).log_scale().base(2.0),
            range.log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .x_label_formatter(&|bytes| size(*bytes))
        .y_label_formatter(&|value| format!("{value:.2}"))
        .light_line_style(WHITE)
        .draw()?;
    for (index, curve) in curves.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let width = if curve.name.starts_with("Ferroverbs") { 3 } else { 1 };
        let style = colour.stroke_width(width);
        let points = curve.points.iter().map(|&(bytes, value)| (bytes as f64, value));
        chart
            .draw_series(LineSeries::new(points, style).point_size(3))?
            .label(curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    let place = if unit.less_is_better() {
        SeriesLabelPosition::UpperLeft
    } else {
        SeriesLabelPosition::LowerRight
    };
    chart
        .configure_series_labels()
        .position(place)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// The title of a plot of this unit, and the good direction.
const fn axis(unit: Unit) -> &'static str {
    match unit {
        Unit::Us => "send latency, us (less is better)",
        Unit::GBs | Unit::Millions => "bandwidth, GB/s (more is better)",
    }
}

fn size(bytes: f64) -> String {
    match bytes {
        b if b >= 1_048_576.0 => format!("{:.0}M", b / 1_048_576.0),
        b if b >= 1024.0 => format!("{:.0}K", b / 1024.0),
        b => format!("{b:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_names_every_curve() {
        let curve = |unit, name| Curve { unit, name, points: vec![(8, 0.2), (1 << 20, 90.0)] };
        let text = svg(&[curve(Unit::Us, "one"), curve(Unit::GBs, "two")]).unwrap();
        assert!(text.starts_with("<svg") && text.contains("one") && text.contains("two"));
    }
}
