//! Colour and bars, only on a terminal.

use std::io::IsTerminal as _;

use holdfast_crds::explain::Urgency;

/// How text may be dressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Escape sequences for colour.
    pub colour: bool,
    /// Bars of block characters.
    pub bars: bool,
}

impl Style {
    /// Nothing but text.
    pub const PLAIN: Self = Self { colour: false, bars: false };

    /// What standard output takes: nothing but text unless it is a terminal. `NO_COLOR` keeps the bars.
    pub fn of_stdout() -> Self {
        let set = |name| std::env::var_os(name).filter(|v| !v.is_empty());
        let terminal = std::io::stdout().is_terminal() && set("TERM").is_none_or(|t| t != "dumb");
        Self { colour: terminal && set("NO_COLOR").is_none(), bars: terminal }
    }

    /// Text in the colour of an urgency.
    pub fn paint(self, urgency: Option<Urgency>, text: &str) -> String {
        let code = match urgency {
            Some(Urgency::Good) => "32",
            Some(Urgency::Working) => "36",
            Some(Urgency::Waiting) => "33",
            Some(Urgency::Act) => "1;31",
            None => return text.to_owned(),
        };
        self.escape(code, text)
    }

    /// Text that heads something.
    pub fn heading(self, text: &str) -> String {
        self.escape("1", text)
    }

    fn escape(self, code: &str, text: &str) -> String {
        if self.colour && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A share of 100, with a bar where one can be drawn.
    pub fn progress(self, percent: u8) -> String {
        const WIDTH: usize = 12;
        let percent = percent.min(100);
        if !self.bars {
            return format!("{percent}%");
        }
        let full = usize::from(percent) * WIDTH / 100;
        format!("{}{} {percent:>3}%", "█".repeat(full), "░".repeat(WIDTH - full))
    }
}

/// A cell of a table: text, and its urgency for the colour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell(pub String, pub Option<Urgency>);

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self(text.into(), None)
    }
}

/// Rows in columns, two spaces apart, nothing trailing; colour is put on after the widths are known.
pub fn columns(rows: &[Vec<Cell>], indent: &str, style: Style) -> String {
    let width = |text: &str| text.chars().count();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|i| rows.iter().filter_map(|r| r.get(i)).map(|c| width(&c.0)).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for row in rows {
        out.push_str(indent);
        let last = row.iter().rposition(|c| !c.0.is_empty()).unwrap_or(0);
        for (i, (cell, column)) in row.iter().zip(&widths).enumerate().take(last + 1) {
            out.push_str(&style.paint(cell.1, &cell.0));
            if i < last {
                out.push_str(&" ".repeat(column - width(&cell.0) + 2));
            }
        }
        out.push('\n');
    }
    out
}

/// Seconds in at most two units.
pub fn span(seconds: i64) -> String {
    let s = seconds.max(0);
    match (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60) {
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) if m < 10 && s > 0 => format!("{m}m{s}s"),
        (0, 0, m, _) => format!("{m}m"),
        (0, h, 0, _) => format!("{h}h"),
        (0, h, m, _) => format!("{h}h{m}m"),
        (d, 0, ..) => format!("{d}d"),
        (d, h, ..) => format!("{d}d{h}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_has_neither_colour_nor_bars() {
        assert_eq!(Style::PLAIN.paint(Some(Urgency::Act), "Stalled"), "Stalled");
        assert_eq!(Style::PLAIN.progress(50), "50%");
    }

    #[test]
    fn a_terminal_gets_both() {
        let style = Style { colour: true, bars: true };
        assert_eq!(style.paint(Some(Urgency::Act), "Stalled"), "\x1b[1;31mStalled\x1b[0m");
        assert_eq!(style.progress(50), "██████░░░░░░  50%");
        assert_eq!(style.progress(250), "████████████ 100%");
    }

    #[test]
    fn columns_line_up_by_characters_and_leave_no_trailing_space() {
        let rows = vec![
            vec![Cell::from("NODE"), Cell::from("STATE"), Cell::from("NOTE")],
            vec![Cell::from("é"), Cell("done".to_owned(), Some(Urgency::Good)), Cell::from("")],
        ];
        let plain = columns(&rows, "  ", Style::PLAIN);
        assert_eq!(plain, "  NODE  STATE  NOTE\n  é     done\n");
        let coloured = columns(&rows, "  ", Style { colour: true, bars: false });
        assert!(coloured.ends_with("  é     \x1b[32mdone\x1b[0m\n"), "{coloured:?}");
    }

    #[test]
    fn a_time_is_shown_in_at_most_two_units() {
        let cases = [
            (-3, "0s"),
            (59, "59s"),
            (60, "1m"),
            (95, "1m35s"),
            (3600, "1h"),
            (5400, "1h30m"),
            (90_000, "1d1h"),
        ];
        for (seconds, text) in cases {
            assert_eq!(span(seconds), text);
        }
    }
}
