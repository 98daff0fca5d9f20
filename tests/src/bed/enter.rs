//! Entering the bed: the program runs itself again in mount, network and PID namespaces of its own.
//!
//! Nothing outside is touched and nothing is left behind, whatever ends the program:
//!
//! ```text
//! outside   the program as it was started; makes the namespaces, waits, dies with Ctrl-C
//!   init    PID 1 of the bed: private mounts, its own /proc, a tmpfs for everything; collects orphans
//!     inside  the program again; `enter` returns here
//! ```
//!
//! `init` dies with `outside` (parent death signal), and the kernel then kills everything in the bed's PID
//! namespace; the tmpfs goes with the last mount namespace. As root no user namespace is needed; an
//! unprivileged user gets one in which it is root.

use std::convert::Infallible;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{Gid, Pid, Uid};

use crate::bed::assets;
use crate::error::{Doing as _, Error, Result};

const STAGE: &str = "HOLDFAST_BED_STAGE";
const ROOT: &str = "HOLDFAST_BED_ROOT";
const OUTSIDE: &str = "HOLDFAST_BED_OUTSIDE";

/// Whether [`enter`] would return at once: the program runs inside a bed.
pub fn is_inside() -> bool {
    std::env::var_os(STAGE).is_some()
}

/// Words that run a command in the bed's namespaces from outside, as the same user: `nsenter` with its arguments.
pub fn way_in() -> Result<Vec<String>> {
    let outside = std::env::var(OUTSIDE).map_err(|_| Error::other("this program is not inside a bed"))?;
    // That process is in all of them but the one of processes, without which `/proc` is empty for who enters.
    let processes = format!("--pid=/proc/{outside}/ns/pid_for_children");
    let mut words = vec!["nsenter".to_owned(), "-t".to_owned(), outside, "--mount".to_owned()];
    words.extend(["--net".to_owned(), processes]);
    // The first line of the map names the whole range where the bed has no user namespace of its own.
    let map = fs::read_to_string("/proc/self/uid_map").doing(|| "reading the user map")?;
    if map.split_whitespace().nth(2) == Some("1") {
        words.extend(["--user".to_owned(), "--preserve-credentials".to_owned()]);
    }
    Ok(words)
}

/// Runs the rest of the program inside a bed of its own and returns the bed's folder, a tmpfs.
///
/// Call it first in `main`, before any thread exists. Outside of the bed it does not return: the process
/// ends with the exit code of the program inside, or with 1 and a message when no bed can be made.
pub fn enter() -> PathBuf {
    let stage = std::env::var(STAGE).unwrap_or_default();
    let never: Result<Infallible> = match stage.as_str() {
        "inside" => match std::env::var_os(ROOT) {
            Some(root) => return PathBuf::from(root),
            None => Err(Error::other(format!("{ROOT} is not set inside the bed"))),
        },
        "init" => init(),
        _ => outside(),
    };
    match never {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("bed: {error}");
            std::process::exit(1)
        }
    }
}

fn outside() -> Result<Infallible> {
    let root = assets::cache_folder()?.join("bed");
    fs::create_dir_all(&root).doing(|| format!("making {}", root.display()))?;
    let (uid, gid) = (Uid::current(), Gid::current());
    let bed = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWPID;
    let alone = if uid.is_root() { unshare(bed) } else { Err(Errno::EPERM) };
    match alone {
        Ok(()) => {}
        // Root without the right to (in a container), or any other user.
        Err(Errno::EPERM) => {
            unshare(bed | CloneFlags::CLONE_NEWUSER).doing(|| {
                "making namespaces (allow unprivileged user namespaces, or run as root: \
                 sysctl -w kernel.unprivileged_userns_clone=1; on Ubuntu also \
                 kernel.apparmor_restrict_unprivileged_userns=0)"
            })?;
            map_ids(uid, gid)?;
        }
        Err(errno) => return Err(errno).doing(|| "making namespaces"),
    }
    // This process shares the bed's namespaces but its PID one: it is the bed's name to the outside.
    let status = itself("init", &root)?
        .env(OUTSIDE, std::process::id().to_string())
        .status()
        .doing(|| "starting the bed")?;
    std::process::exit(exit_code(status))
}

/// Makes this user root of the new user namespace.
fn map_ids(uid: Uid, gid: Gid) -> Result<()> {
    for (file, line) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {uid} 1")),
        ("/proc/self/gid_map", format!("0 {gid} 1")),
    ] {
        fs::write(file, line).doing(|| format!("writing {file}"))?;
    }
    Ok(())
}

fn init() -> Result<Infallible> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).doing(|| "asking to die with the parent")?;
    let root =
        std::env::var_os(ROOT).map(PathBuf::from).ok_or_else(|| Error::other("the bed has no folder"))?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .doing(|| "making all mounts private")?;
    let strict = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), strict, none).doing(|| "mounting the bed's own /proc")?;
    // Room for the logs, etcd and every sized disk; only what is written takes memory.
    mount(Some("bed"), &root, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=0755,size=75%"))
        .doing(|| format!("mounting a tmpfs at {}", root.display()))?;
    let temporary = root.join("tmp");
    fs::create_dir(&temporary).doing(|| "making the bed's folder for temporary files")?;
    let program = itself("inside", &root)?
        .env("TMPDIR", &temporary)
        .spawn()
        .doing(|| "starting the program inside the bed")?;
    let program =
        Pid::from_raw(program.id().try_into().map_err(|_| Error::other("an impossible process id"))?);
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, code)) if pid == program => std::process::exit(code),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == program => {
                std::process::exit(128 + signal as i32)
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).doing(|| "waiting for the program inside the bed"),
        }
    }
}

fn itself(stage: &str, root: &Path) -> Result<Command> {
    let program = std::env::current_exe().doing(|| "finding this program")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(STAGE, stage).env(ROOT, root);
    Ok(command)
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}
