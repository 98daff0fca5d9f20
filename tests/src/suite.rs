//! A suite: tests that share one bed, one after the other, printed like any Rust tests.
//!
//! ```ignore
//! fn main() -> std::process::ExitCode {
//!     suite::run("bed", &bed::Options::default(), vec![
//!         test!(a_service_account_token_is_issued),
//!     ])
//! }
//!
//! async fn a_service_account_token_is_issued(bed: Arc<Bed>) -> TestResult { … }
//! ```

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use crate::bed::{self, Bed};
use crate::error::Error;

/// What a test returns; any error fails it with its text.
pub type TestResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;
/// A test's body.
pub type Body = Box<dyn FnOnce(Arc<Bed>) -> Pin<Box<dyn Future<Output = TestResult> + Send>> + Send>;

/// Set, suites on the bed do nothing: for runs of everything else.
const NO_BED: &str = "HOLDFAST_NO_BED";
/// No test of the bed takes longer; one that hangs must not hang the suite.
const LIMIT: Duration = Duration::from_secs(1200);
/// With the product's own waiting times.
const LONG_LIMIT: Duration = Duration::from_secs(3600);

/// One test of a suite.
pub struct Test {
    /// A sentence, with underscores.
    pub name: &'static str,
    /// What it does.
    pub body: Body,
}

/// Makes a [`Test`] of an `async fn(Arc<Bed>) -> TestResult`; its name is the function's.
#[macro_export]
macro_rules! test {
    ($function:ident) => {
        $crate::suite::Test { name: stringify!($function), body: Box::new(|bed| Box::pin($function(bed))) }
    };
}

/// Runs a suite inside a bed of its own. The bed is started with the first test that runs; listing tests
/// starts nothing. When a test failed, the bed's state is printed and its logs are kept.
pub fn run(suite: &str, options: &bed::Options, tests: Vec<Test>) -> ExitCode {
    // The tests share one bed and change it.
    run_side_by_side(suite, options, 1, tests)
}

/// The same for tests that leave each other alone (each has a site of its own): at most so many run at once.
pub fn run_side_by_side(suite: &str, options: &bed::Options, at_once: usize, tests: Vec<Test>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(arguments.test_threads.map_or(at_once, |given| given.min(at_once)));
    if arguments.list {
        let trials = tests.into_iter().map(|test| Trial::test(test.name, || Ok(()))).collect();
        return libtest_mimic::run(&arguments, trials).exit_code();
    }
    if std::env::var_os(NO_BED).is_some() {
        println!("{suite}: not run, {NO_BED} is set");
        return ExitCode::SUCCESS;
    }
    let root = bed::enter();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => Arc::new(runtime),
        Err(error) => {
            eprintln!("{suite}: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let bed: Arc<OnceCell<Result<Arc<Bed>, String>>> = Arc::default();
    let trials = tests
        .into_iter()
        .map(|test| {
            let (runtime, bed, root, options) = (runtime.clone(), bed.clone(), root.clone(), options.clone());
            Trial::test(test.name, move || run_one(&runtime, &bed, root, options, test.body))
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if conclusion.has_failed() && bed.get().is_some_and(Result::is_ok) {
        let kept = bed::beside_the_program("bed-logs").join(suite);
        match bed::keep_logs(&root.join("logs"), &kept) {
            Ok(()) => println!("the bed's logs: {}", kept.display()),
            Err(error) => println!("the bed's logs could not be kept: {error}"),
        }
    }
    conclusion.exit_code()
}

fn run_one(
    runtime: &Runtime,
    bed: &OnceCell<Result<Arc<Bed>, String>>,
    root: PathBuf,
    options: bed::Options,
    body: Body,
) -> Result<(), Failed> {
    let limit = if options.real_times { LONG_LIMIT } else { LIMIT };
    runtime.block_on(async {
        let bed = bed
            .get_or_init(|| async move {
                Bed::start(&root, &options).await.map(Arc::new).map_err(|error| format!("no bed: {error}"))
            })
            .await
            .clone()?;
        // A task of its own, so that a failed assertion does not take the bed's state with it.
        let test = tokio::spawn(body(bed.clone()));
        let failure = match tokio::time::timeout(limit, test).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(panic)) => panic_text(panic),
            Err(_) => Error::Timeout {
                waited_for: "the test's end".to_owned(),
                seconds: limit.as_secs(),
                state: String::new(),
            }
            .to_string(),
        };
        // Told once more at the end; a long suite is watched while it runs.
        eprintln!("failed: {failure}");
        Err(Failed::from(format!("{failure}\n\nThe bed at that moment:\n{}", bed.state().await)))
    })
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "the test was cancelled".to_owned() };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "the test panicked".to_owned())
}
