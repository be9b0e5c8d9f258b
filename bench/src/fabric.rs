//! `cargo xtask bench fabric`: 256 hosts on a virtual clock (docs/reference/wire-simulation.md), as
//! a table and as a plot over time. The results do not depend on the machine.

use plotters::prelude::*;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;
use xtask::paths::Paths;
use xtask::process::Job;
use xtask::progress::Progress;
use xtask::scratch::Scratch;

/// With building, on a slow machine.
const LIMIT: Duration = Duration::from_secs(1800);

const PAGE: &str = "docs/reference/wire-simulation.md";
const PICTURE: &str = "docs/reference/wire-simulation.svg";

/// The plotted cases, in which several senders or replies share one link: name and number of QPs in
/// the table, and the name in the plot.
const DRAWN: [(&str, &str, &str); 5] = [
    ("sharing a link", "32", "sharing a link, 32 QPs"),
    ("incast", "510", "incast, 510 QPs"),
    ("incast", "10200", "incast, 10200 QPs"),
    ("incast, no marks", "10200", "incast, 10200 QPs, no marks"),
    ("READ incast", "510", "READ incast, 510 QPs"),
];

/// Samples of one point: shorter changes would not be visible.
const OF_A_POINT: usize = 4;

/// Milliseconds; and what each panel shows.
type Point = (f64, [f64; 3]);

/// A scenario over time.
#[derive(Clone, Debug, Default, PartialEq)]
struct Curve {
    name: &'static str,
    points: Vec<Point>,
}

/// The quantity that each panel shows, in the order of the samples' columns, and the unit of a
/// sample.
const PANELS: [(&str, f64); 3] = [
    ("what came, of what the receiver's link carries (%)", 100.0),
    ("fairness: Jain's index of what connections got so far", 1.0),
    ("queue in front of the receiver (KB)", 1.0 / 1024.0),
];

/// Runs the simulation and prints the table; with `write` updates the page and the plot.
pub(super) fn main(paths: &Paths, write: bool, progress: &Progress) -> crate::Result<ExitCode> {
    let scratch = Scratch::new()?;
    let samples = scratch.path().join("samples");
    progress.step("256 hosts on a virtual clock");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let job = Job::new(cargo)
        .args([
            "run",
            "--quiet",
            "--release",
            "--package=ferroverbs-roce",
            "--example=fabric",
            "--",
        ])
        .arg(&samples)
        .dir(&paths.root)
        .env("CARGO_TERM_COLOR", "never")
        .env_remove("CARGO_MANIFEST_DIR");
    let done = job.run(&scratch, LIMIT)?;
    progress.clear();
    if !done.ok() || done.stdout.contains("not complete") {
        return Err(done.report("the simulation"));
    }
    print!("{}", done.stdout);
    if !write {
        return Ok(ExitCode::SUCCESS);
    }
    let read = |file: &std::path::Path| {
        fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))
    };
    let put = |file: &str, text: &str| {
        fs::write(paths.root.join(file), text).map_err(|e| format!("{file}: {e}"))
    };
    put(PAGE, &with_table(&read(&paths.root.join(PAGE))?, &done.stdout)?)?;
    put(PICTURE, &svg(&curves(&read(&samples)?)?)?)?;
    println!("\nwritten: {PAGE}, {PICTURE}");
    Ok(ExitCode::SUCCESS)
}

/// The page with this table in place of its first table.
fn with_table(page: &str, table: &str) -> crate::Result<String> {
    let (before, rest) =
        page.split_once("\n| | QPs |").ok_or_else(|| format!("{PAGE} has no table"))?;
    let behind = rest.split_once("\n\n").map_or("", |(_, behind)| behind);
    Ok(format!("{before}\n{}\n\n{behind}", table.trim_end()))
}

/// The curves of the samples: lines of name, QPs, milliseconds, and the values of the panels.
fn curves(samples: &str) -> crate::Result<Vec<Curve>> {
    let rows: Vec<Vec<_>> = samples.lines().map(|line| line.split('\t').collect()).collect();
    let drawn = DRAWN.iter().map(|&(scenario, qps, name)| {
        let own = rows.iter().filter(|row| row.starts_with(&[scenario, qps]));
        let points = own.map(|row| point(row).ok_or_else(|| format!("no sample: {row:?}")));
        let points: Vec<_> = points.collect::<Result<_, _>>()?;
        if points.is_empty() {
            return Err(format!("there are no samples of {name}"));
        }
        Ok(Curve { name, points: points.chunks(OF_A_POINT).map(mean).collect() })
    });
    drawn.collect()
}

fn point(row: &[&str]) -> Option<Point> {
    let number = |at: usize| row.get(at)?.parse::<f64>().ok();
    let mut values = [number(3)?, number(4)?, number(5)?];
    values.iter_mut().zip(PANELS).for_each(|(value, (_, unit))| *value *= unit);
    Some((number(2)?, values))
}

fn mean(points: &[Point]) -> Point {
    let n = points.len() as f64;
    let of = |value: &dyn Fn(&Point) -> f64| points.iter().map(value).sum::<f64>() / n;
    (of(&|p| p.0), [of(&|p| p.1[0]), of(&|p| p.1[1]), of(&|p| p.1[2])])
}

/// A panel for each figure, from top to bottom.
fn svg(curves: &[Curve]) -> crate::Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (1000, 840)).into_drawing_area();
        area.fill(&WHITE).map_err(|e| e.to_string())?;
        for (panel, part) in area.split_evenly((PANELS.len(), 1)).iter().enumerate() {
            draw(part, panel, curves).map_err(|e| format!("cannot draw: {e}"))?;
        }
        area.present().map_err(|e| e.to_string())?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(area: &Area<'_>, panel: usize, curves: &[Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let longest = points().map(|point| point.0).fold(1.0, f64::max);
    let most = points().map(|point| point.1[panel]).fold(0.01, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(PANELS[panel].0, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(46)
        // Room for the names.
        .build_cartesian_2d(0.0..longest * 1.3, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("ms")
        .x_label_formatter(&|ms| format!("{ms:.0}"))
        .y_label_formatter(&|value| {
            if most > 10.0 { format!("{value:.0}") } else { format!("{value:.1}") }
        })
        .light_line_style(WHITE)
        .draw()?;
    for (index, curve) in curves.iter().enumerate() {
        let style = Palette99::pick(index).to_rgba().stroke_width(2);
        let points = curve.points.iter().map(|(ms, values)| (*ms, values[panel]));
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> String {
        let line = |ms: usize| {
            let each = DRAWN.iter().map(|(scenario, qps, _)| {
                format!("{scenario}\t{qps}\t{ms}\t0.5\t0.25\t{}\n", 1024 * ms)
            });
            each.collect::<String>()
        };
        (1..=OF_A_POINT + 2).map(line).collect()
    }

    #[test]
    fn samples_become_points_in_the_units_of_the_panels() {
        let curves = curves(&samples()).unwrap();
        assert_eq!(curves.len(), DRAWN.len());
        let points = vec![(2.5, [50.0, 0.25, 2.5]), (5.5, [50.0, 0.25, 5.5])];
        assert_eq!(curves[2], Curve { name: "incast, 10200 QPs", points });
        let without = samples().replace("READ incast", "other");
        assert!(super::curves(&without).unwrap_err().contains("READ incast"));
        assert!(super::curves(&samples().replace("0.25", "x")).is_err());
    }

    #[test]
    fn a_picture_names_every_curve_and_every_panel() {
        let text = svg(&curves(&samples()).unwrap()).unwrap();
        let names = DRAWN.iter().map(|drawn| drawn.2).chain(PANELS.map(|panel| panel.0));
        for name in names {
            assert!(text.contains(&name.replace('\'', "&apos;")) || text.contains(name), "{name}");
        }
    }

    #[test]
    fn the_table_of_the_page_is_replaced() {
        let page = "# A\n\ntext\n\n| | QPs | x |\n|---|\n| old |\n\nmore\n\n| other |\n";
        let new = with_table(page, "| | QPs | x |\n|---|\n| new |\n").unwrap();
        assert_eq!(new, "# A\n\ntext\n\n| | QPs | x |\n|---|\n| new |\n\nmore\n\n| other |\n");
        assert!(with_table("none", "").is_err());
    }

    #[test]
    fn the_page_shows_the_picture_and_a_row_of_each_curve() {
        let page = include_str!("../../docs/reference/wire-simulation.md");
        assert!(
            page.contains("](wire-simulation.svg)") && page.contains("cargo xtask bench fabric")
        );
        for (scenario, qps, _) in DRAWN {
            assert!(page.contains(&format!("\n| {scenario} | {qps} |")), "{scenario}");
        }
    }
}
