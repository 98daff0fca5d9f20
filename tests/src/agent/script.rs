//! The script that turns a shell into a container: made here as text, run by `container.rs` inside the
//! Pod's network namespace and in fresh mount, PID, UTS and IPC namespaces. A person can read it in the
//! Pod's folder and run it by hand.
//!
//! It tells the agent on standard output `pid N` (the main process in the bed's PID namespace, read from
//! the bed's own `/proc`, which is still there at that moment) and `started`, and then closes it: the
//! program gets the log for both outputs. Ending without `started` means that the container was not made.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A bind mount into the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// What is mounted, in the bed.
    pub source: PathBuf,
    /// Where, an absolute path in the container.
    pub target: String,
    /// Not writable.
    pub read_only: bool,
    /// A directory (else a file).
    pub directory: bool,
}

/// Who the program runs as.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// User and group; `None`: the bed's root.
    pub ids: Option<(i64, i64)>,
    /// Supplementary groups.
    pub groups: Vec<i64>,
    /// Capabilities taken away, in Kubernetes' spelling; `ALL` is all.
    pub drop: Vec<String>,
    /// No program can gain rights.
    pub no_new_privileges: bool,
}

/// Everything that a container is.
#[derive(Debug, Clone)]
pub struct Plan {
    /// An empty folder of the bed on which the root is built.
    pub root: PathBuf,
    /// A folder whose content becomes part of `/etc`.
    pub etc: PathBuf,
    /// Where the output goes.
    pub log: PathBuf,
    /// A file that the program may write its last words to.
    pub termination_log: Bind,
    /// Files of the image, then volumes.
    pub binds: Vec<Bind>,
    /// The Pod's host name.
    pub hostname: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The environment.
    pub env: Vec<(String, String)>,
    /// The working directory.
    pub working_dir: String,
    /// Nothing but volumes can be written.
    pub read_only_root: bool,
    /// Who it runs as.
    pub identity: Identity,
}

const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The shell script.
pub fn script(plan: &Plan) -> String {
    let mut text = format!(
        "set -eu\n\
         PATH={SEARCH}:$PATH; export PATH\n\
         exec 3>&1 >>{log} 2>&1\n\
         read -r pid rest </proc/self/stat\n\
         echo \"pid $pid\" >&3\n\
         mount -t tmpfs -o mode=0755,size=1g bed-root {root}\n\
         cd {root}\n",
        log = quote_path(&plan.log),
        root = quote_path(&plan.root),
    );
    text.push_str(SYSTEM);
    let _ = writeln!(text, "cp -R {}/. etc/", quote_path(&plan.etc));
    let mut binds: Vec<&Bind> = plan.binds.iter().chain([&plan.termination_log]).collect();
    // A volume inside another one comes after it.
    binds.sort_by_key(|bind| bind.target.trim_end_matches('/').matches('/').count());
    for bind in binds {
        let target = quote(&format!(".{}", bind.target));
        let source = quote_path(&bind.source);
        if bind.directory {
            let _ = writeln!(text, "mkdir -p {target}");
        } else {
            let parent = Path::new(&bind.target).parent().unwrap_or(Path::new("/"));
            let _ = writeln!(text, "mkdir -p {}", quote(&format!(".{}", parent.display())));
            let _ = writeln!(text, "[ -e {target} ] || : >{target}");
        }
        let _ = writeln!(text, "mount --rbind {source} {target}");
        if bind.read_only {
            let _ = writeln!(text, "mount -o remount,bind,ro {target}");
        }
    }
    let working_dir = if plan.working_dir.is_empty() { "/" } else { &plan.working_dir };
    let _ = write!(
        text,
        "hostname {hostname} 2>/dev/null || echo {hostname} >/proc/sys/kernel/hostname\n\
         mkdir -p .bed-old .{working_dir}\n\
         pivot_root . .bed-old\n\
         cd /\n\
         umount --lazy /.bed-old\n\
         rmdir /.bed-old\n",
        hostname = quote(&plan.hostname),
        working_dir = quote(&format!("/{}", working_dir.trim_start_matches('/'))),
    );
    if plan.read_only_root {
        text.push_str("mount -o remount,bind,ro /\n");
    }
    let program = plan.argv.first().map(String::as_str).unwrap_or_default();
    let _ = write!(
        text,
        "cd {dir}\n\
         command -v -- {program} >/dev/null || {{ echo {missing}; exit 127; }}\n\
         echo started >&3\n\
         exec 3>&-\n\
         exec {command}\n",
        dir = quote(working_dir),
        program = quote(program),
        missing = quote(&format!("exec: {program:?}: no such file in the container")),
        command = command(&plan.identity, &plan.env, &plan.argv)
            .iter()
            .map(|word| quote(word))
            .collect::<Vec<_>>()
            .join(" "),
    );
    text
}

/// The words that run a program with an environment as somebody: for the container's own program and for
/// what is executed beside it later.
pub fn command(identity: &Identity, env: &[(String, String)], argv: &[String]) -> Vec<String> {
    let mut words = vec!["env".to_owned(), "-i".to_owned()];
    if !env.iter().any(|(name, _)| name == "PATH") {
        words.push(format!("PATH={SEARCH}"));
    }
    words.extend(env.iter().map(|(name, value)| format!("{name}={value}")));
    let mut set = Vec::new();
    if let Some((user, group)) = identity.ids {
        set.push(format!("--reuid={user}"));
        set.push(format!("--regid={group}"));
        if identity.groups.is_empty() {
            set.push("--clear-groups".to_owned());
        } else {
            let groups: Vec<_> = identity.groups.iter().map(ToString::to_string).collect();
            set.push(format!("--groups={}", groups.join(",")));
        }
    }
    if !identity.drop.is_empty() {
        let names: Vec<_> = identity.drop.iter().map(|name| capability(name)).collect();
        set.push(format!("--inh-caps={}", names.join(",")));
        set.push(format!("--bounding-set={}", names.join(",")));
    }
    if identity.no_new_privileges {
        set.push("--no-new-privs".to_owned());
    }
    if !set.is_empty() {
        words.push("setpriv".to_owned());
        words.extend(set);
        words.push("--".to_owned());
    }
    words.extend(argv.iter().cloned());
    words
}

fn capability(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    format!("-{}", name.strip_prefix("cap_").unwrap_or(&name))
}

/// One word for a POSIX shell.
pub fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn quote_path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

/// The machine's programs and libraries, read-only; its own `/etc`, `/dev`, `/proc`, `/tmp`.
const SYSTEM: &str = r#"
umask 022
mkdir -p dev etc home proc root run sys tmp usr var/tmp var/log var/run
chmod 1777 tmp var/tmp
bind_dir() { mkdir -p ".$1"; mount --rbind "$1" ".$1"; mount -o remount,bind,ro ".$1"; }
for d in /bin /sbin /lib /lib32 /lib64 /libx32; do
  if [ -L "$d" ]; then ln -s "$(readlink "$d")" ".$d"; elif [ -d "$d" ]; then bind_dir "$d"; fi
done
# Not /usr as a whole: an image's program may stand below /usr/local.
for d in bin sbin lib lib32 lib64 libx32 libexec share; do
  if [ -d "/usr/$d" ] && ! [ -L "/usr/$d" ]; then bind_dir "/usr/$d"; elif [ -L "/usr/$d" ]; then ln -s "$(readlink "/usr/$d")" "usr/$d"; fi
done
for d in /nix /gnu /etc/ssl /etc/pki /etc/ca-certificates /etc/alternatives /etc/ld.so.conf.d; do
  if [ -d "$d" ]; then bind_dir "$d"; fi
done
for f in ld.so.cache ld.so.conf localtime nsswitch.conf protocols services; do
  if [ -f "/etc/$f" ]; then cp -L "/etc/$f" "etc/$f"; fi
done
mount -t tmpfs -o mode=0755,size=1m bed-dev dev
for f in null zero full random urandom tty; do : >"dev/$f"; mount --bind "/dev/$f" "dev/$f"; done
ln -s /proc/self/fd dev/fd; ln -s /proc/self/fd/0 dev/stdin; ln -s /proc/self/fd/1 dev/stdout; ln -s /proc/self/fd/2 dev/stderr
mkdir dev/shm; mount -t tmpfs -o mode=1777,size=64m bed-shm dev/shm
# Where the outer /proc is masked the kernel refuses a new one; then the outer one must do.
mount -t proc proc proc 2>/dev/null || mount --rbind /proc proc
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_word_survives_the_shell_whatever_is_in_it() {
        assert_eq!(quote("it's $HOME"), r"'it'\''s $HOME'");
    }

    #[test]
    fn an_identity_is_set_after_the_environment() {
        let identity = Identity {
            ids: Some((65532, 65532)),
            groups: vec![1, 2],
            drop: words(&["ALL"]),
            no_new_privileges: true,
        };
        let line = command(&identity, &[("A".to_owned(), "b c".to_owned())], &words(&["/garage", "server"]));
        assert_eq!(line[..2], words(&["env", "-i"]));
        assert_eq!(
            line[3..],
            words(&[
                "A=b c",
                "setpriv",
                "--reuid=65532",
                "--regid=65532",
                "--groups=1,2",
                "--inh-caps=-all",
                "--bounding-set=-all",
                "--no-new-privs",
                "--",
                "/garage",
                "server",
            ])
        );
    }

    #[test]
    fn a_capability_is_spelled_as_setpriv_does() {
        assert_eq!(capability("NET_RAW"), "-net_raw");
        assert_eq!(capability("CAP_CHOWN"), "-chown");
    }

    #[test]
    fn a_volume_inside_another_is_mounted_after_it() {
        let bind = |target: &str| Bind {
            source: PathBuf::from("/x"),
            target: target.to_owned(),
            read_only: false,
            directory: true,
        };
        let plan = Plan {
            root: PathBuf::from("/r"),
            etc: PathBuf::from("/e"),
            log: PathBuf::from("/l"),
            termination_log: Bind { directory: false, ..bind("/dev/termination-log") },
            binds: vec![bind("/data/data"), bind("/data")],
            hostname: "h".to_owned(),
            argv: words(&["true"]),
            env: Vec::new(),
            working_dir: String::new(),
            read_only_root: false,
            identity: Identity::default(),
        };
        let text = script(&plan);
        let outer = text.find("mount --rbind '/x' './data'\n");
        let inner = text.find("mount --rbind '/x' './data/data'\n");
        assert!(outer.is_some() && outer < inner, "{text}");
    }
}
