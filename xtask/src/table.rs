//! Plain text tables.

/// Which side of its column a cell keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows below a header; every row has as many cells as the header.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub(crate) fn new(header: &[(&'static str, Align)]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    /// Appends a row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// The text, with a newline after each line.
    pub(crate) fn render(&self) -> String {
        let widths: Vec<_> = (0..self.header.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                let longest = cells.map(|c| c.chars().count()).max().unwrap_or(0);
                longest.max(self.header.get(column).map_or(0, |(h, _)| h.len()))
            })
            .collect();
        let line = |cells: &[String]| {
            let mut text = String::new();
            for ((cell, width), (_, align)) in cells.iter().zip(&widths).zip(&self.header) {
                match align {
                    Align::Left => text.push_str(&format!("{cell:<width$}  ")),
                    Align::Right => text.push_str(&format!("{cell:>width$}  ")),
                }
            }
            format!("{}\n", text.trim_end())
        };
        let head: Vec<_> = self.header.iter().map(|(h, _)| (*h).to_string()).collect();
        let rule: Vec<_> = widths.iter().map(|w| "-".repeat(*w)).collect();
        let mut text = line(&head) + &line(&rule);
        for row in &self.rows {
            text.push_str(&line(row));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("test", Align::Left), ("us", Align::Right)]);
        table.row(["send".into(), "0.25".into()]);
        table.row(["read and write".into(), "10.00".into()]);
        assert_eq!(
            table.render(),
            "test               us\n--------------  -----\nsend             0.25\nread and write  10.00\n"
        );
    }
}
