//! What the demo shows: numbered steps, the commands an administrator would type, and a line of live
//! progress.

use std::io::{IsTerminal as _, Write as _};
use std::time::Instant;

/// One terminal, or a log.
pub struct Display {
    steps: u32,
    step: u32,
    begun: Instant,
    step_begun: Instant,
    terminal: bool,
    progress: String,
}

impl Display {
    /// A display of a story of so many steps.
    pub fn new(steps: u32) -> Self {
        let now = Instant::now();
        Self {
            steps,
            step: 0,
            begun: now,
            step_begun: now,
            terminal: std::io::stdout().is_terminal(),
            progress: String::new(),
        }
    }

    /// Begins the next step.
    pub fn step(&mut self, what: &str) {
        self.end_progress();
        self.step += 1;
        self.step_begun = Instant::now();
        println!("\n{} {what}", self.bold(&format!("[{}/{}]", self.step, self.steps)));
    }

    /// Shows a command as it would be typed.
    pub fn command(&mut self, line: &str) {
        self.end_progress();
        println!("  $ {}", self.bold(line));
    }

    /// Shows text, indented.
    pub fn text(&mut self, text: &str) {
        self.end_progress();
        for line in text.trim_end().lines() {
            println!("    {line}");
        }
    }

    /// Shows where things are; on a terminal the line is rewritten, in a log only news are printed.
    pub fn progress(&mut self, line: &str) {
        if line == self.progress {
            return;
        }
        line.clone_into(&mut self.progress);
        let seconds = self.step_begun.elapsed().as_secs();
        if self.terminal {
            // Cut to one row, or a rewritten line leaves rests behind.
            let line: String = line.chars().take(100).collect();
            print!("\r\x1b[2K    … {seconds:>3} s  {line}");
            let _ = std::io::stdout().flush();
        } else {
            println!("    … {seconds:>3} s  {line}");
        }
    }

    /// Says that the step happened.
    pub fn done(&mut self, result: &str) {
        self.end_progress();
        println!("    {} {result} ({:.1} s)", self.green("✔"), self.step_begun.elapsed().as_secs_f32());
    }

    /// The end of the story.
    pub fn end(&mut self, result: &str) {
        self.end_progress();
        println!("\n{} ({:.0} s in all)", self.bold(result), self.begun.elapsed().as_secs_f32());
    }

    fn end_progress(&mut self) {
        if self.terminal && !self.progress.is_empty() {
            println!();
        }
        self.progress.clear();
    }

    fn bold(&self, text: &str) -> String {
        self.colour("1", text)
    }

    fn green(&self, text: &str) -> String {
        self.colour("32", text)
    }

    fn colour(&self, code: &str, text: &str) -> String {
        if self.terminal { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
