//! Plain text tables: comfy-table in one style. No cell is wrapped or cut, so a line of a table can
//! be searched for.

use comfy_table::{Cell, CellAlignment, ContentLineStyle, LineStyle, TableStyle};

/// Which side of its column a cell keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows below a header; every row has as many cells as the header.
#[derive(Debug)]
pub struct Table(comfy_table::Table);

impl Table {
    /// A table without rows.
    pub fn new(header: &[(&'static str, Align)]) -> Self {
        let mut table = comfy_table::Table::new();
        let blank = ContentLineStyle::none().junction(' ');
        let rule = LineStyle::none().fill('-').junction(' ');
        let style = TableStyle::new().header_lines(blank).header_separator(rule);
        table
            .load_style(style.content_lines(blank))
            .set_header(header.iter().map(|(name, _)| Cell::new(name)));
        for (column, (_, align)) in table.column_iter_mut().zip(header) {
            column.set_padding((0, 1));
            column.set_cell_alignment(match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        Self(table)
    }

    /// Appends a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.0.add_row(cells);
    }

    /// The text, with a newline after each line.
    pub fn render(&self) -> String {
        self.0.lines().map(|line| format!("{}\n", line.trim_end())).collect()
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
            "test               us\n--------------- ------\nsend             0.25\nread and write  10.00\n"
        );
    }
}
