//! The container image that `make image` puts together: unpacked as a container runtime would, checked, and run. Made of
//! the binaries that the tests were built with; the ones that are released differ in nothing that is looked at here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use holdfast_tests::bed::{beside_the_program, tools::workspace};
use nix::unistd::Uid;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// The archive, its parts, and the root that its layers make.
struct Image {
    archive: PathBuf,
    root: PathBuf,
    manifest: Value,
    config: Value,
    _folder: TempDir,
}

static IMAGE: LazyLock<Image> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    // Another user must get through to the root inside.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let archive = folder.path().join("image.tar");
    make(&archive);
    let layout = folder.path().join("layout");
    tar::Archive::new(File::open(&archive).unwrap()).unpack(&layout).unwrap();

    let said = json(&fs::read(layout.join("oci-layout")).unwrap());
    assert_eq!(said["imageLayoutVersion"], "1.0.0");
    let index = json(&fs::read(layout.join("index.json")).unwrap());
    assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
    let manifest = json(&fs::read(blob(&layout, &index["manifests"][0])).unwrap());
    let config = json(&fs::read(blob(&layout, &manifest["config"])).unwrap());
    let root = folder.path().join("root");
    for layer in manifest["layers"].as_array().unwrap() {
        let mut layer = tar::Archive::new(File::open(blob(&layout, layer)).unwrap());
        layer.set_preserve_permissions(true);
        layer.unpack(&root).unwrap();
    }
    Image { archive, root, manifest, config, _folder: folder }
});

fn make(archive: &Path) {
    let output = Command::new(workspace().join("image/archive.sh"))
        .arg(beside_the_program(""))
        .arg(archive)
        .env_remove("SOURCE_DATE_EPOCH")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn json(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap()
}

fn digest(file: &Path) -> String {
    let mut hash = Sha256::new();
    std::io::copy(&mut File::open(file).unwrap(), &mut hash).unwrap();
    format!("sha256:{}", hex::encode(hash.finalize()))
}

/// The blob of a descriptor, which is what its digest and its size say.
fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let named = descriptor["digest"].as_str().unwrap();
    let path = layout.join("blobs").join(named.replace(':', "/"));
    assert_eq!(digest(&path), named);
    assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap(), "{named}");
    path
}

/// Everything below a folder that is not itself a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

/// Runs a program inside the image as its user (as root of a user namespace, if this user may not change root), with the
/// image's environment and nothing else.
fn run(program: &str, arguments: &[&str]) -> Output {
    let image = &*IMAGE;
    let mut command = if Uid::effective().is_root() {
        let mut command = Command::new("chroot");
        command.arg(format!("--userspec={}", image.config["config"]["User"].as_str().unwrap()));
        command
    } else {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "chroot"]);
        command
    };
    // The way to chroot itself, which is not on everybody's; what it runs is named by its whole path.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    command.env_clear().env("PATH", path).arg(&image.root).arg(program).args(arguments).output().unwrap()
}

fn entrypoint() -> &'static str {
    let entrypoint = IMAGE.config["config"]["Entrypoint"].as_array().unwrap();
    assert_eq!(entrypoint.len(), 1);
    entrypoint[0].as_str().unwrap()
}

#[test]
fn the_binaries_run_inside_the_image_as_its_user() {
    let version = run(entrypoint(), &["--version"]);
    assert!(version.status.success(), "{version:?}");
    let version = String::from_utf8(version.stdout).unwrap();
    let labels = &IMAGE.config["config"]["Labels"];
    let labelled = labels["org.opencontainers.image.version"].as_str().unwrap();
    assert_eq!(version.trim(), format!("garage-holdfast {labelled}"));

    let crds = run(entrypoint(), &["crds"]);
    assert!(crds.status.success(), "{crds:?}");
    let outside = Command::new(beside_the_program("garage-holdfast")).arg("crds").output().unwrap();
    assert_eq!(String::from_utf8(crds.stdout).unwrap(), String::from_utf8(outside.stdout).unwrap());

    let plugin = run("/usr/bin/kubectl-holdfast", &["explain", "Stalled"]);
    assert!(plugin.status.success() && !plugin.stdout.is_empty(), "{plugin:?}");
}

/// The chart passes `serve` as arguments, so they follow the entrypoint.
#[test]
fn serve_starts_inside_the_image_and_says_what_it_lacks_outside_of_a_cluster() {
    let serve = run(entrypoint(), &["serve", "--webhook-listen=[::1]:0", "--metrics-listen=[::1]:0"]);
    let said = String::from_utf8_lossy(&serve.stderr);
    assert_eq!(serve.status.code(), Some(1), "{said}");
    assert!(said.contains("no way to a Kubernetes API server"), "{said}");
}

/// What a static binary of glibc could not do: Kubernetes mounts `hosts` and `resolv.conf`, the C library reads them.
#[test]
fn names_are_looked_up_inside_the_image() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    fs::write(IMAGE.root.join("etc/hosts"), "127.0.0.1 api.image.test\n").unwrap();
    let kubeconfig = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": format!("http://api.image.test:{}", address.port())}}],
        "users": [{"name": "it", "user": {}}],
    });
    fs::write(IMAGE.root.join("kubeconfig"), kubeconfig.to_string()).unwrap();
    let asked = std::thread::spawn(move || {
        let (mut connection, _) = server.accept().unwrap();
        let mut request = [0; 4];
        connection.read_exact(&mut request).unwrap();
        request
    });
    let status = run("/usr/bin/kubectl-holdfast", &["--kubeconfig=/kubeconfig", "status"]);
    // Ends the thread where nobody came before.
    TcpStream::connect(address).and_then(|mut connection| connection.write_all(b"none")).ok();
    let said = String::from_utf8_lossy(&status.stderr);
    assert_eq!(asked.join().unwrap(), *b"GET ", "{said}");
}

#[test]
fn nothing_in_the_image_can_be_changed_by_its_user_or_gives_more_rights() {
    let user = IMAGE.config["config"]["User"].as_str().unwrap();
    let (user, group) = user.split_once(':').unwrap();
    // As the chart runs it, and numbers: a kubelet cannot tell whether a name is root's.
    assert_eq!((user, group), ("65532", "65532"));
    let mut archive = tar::Archive::new(File::open(&IMAGE.archive).unwrap());
    let wanted: Vec<String> = IMAGE.manifest["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|layer| format!("blobs/{}", layer["digest"].as_str().unwrap().replace(':', "/")))
        .collect();
    let mut seen = 0;
    for layer in archive.entries().unwrap() {
        let layer = layer.unwrap();
        if !wanted.iter().any(|path| Path::new(path) == layer.path().unwrap()) {
            continue;
        }
        for entry in tar::Archive::new(layer).entries().unwrap() {
            let entry = entry.unwrap();
            let (path, header) = (entry.path().unwrap(), entry.header());
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0), "{}", path.display());
            assert_eq!(header.mode().unwrap() & 0o7022, 0, "{}", path.display());
            let kind = header.entry_type();
            assert!(kind.is_file() || kind.is_dir(), "{}: {kind:?}", path.display());
            assert!(path.is_relative() && !path.to_str().unwrap().contains(".."), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn the_image_holds_two_programs_their_libraries_and_no_shell() {
    let programs: Vec<PathBuf> = {
        let mut programs = files(&IMAGE.root.join("usr/bin"));
        programs.sort();
        programs
    };
    let names: Vec<&str> = programs.iter().map(|p| p.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["garage-holdfast", "kubectl-holdfast"]);
    assert!(programs.iter().all(|p| fs::metadata(p).unwrap().mode() & 0o111 == 0o111));
    let others = files(&IMAGE.root);
    for file in &others {
        let inside = file.strip_prefix(&IMAGE.root).unwrap().to_str().unwrap();
        let library = inside.contains(".so.");
        let ours = inside.starts_with("usr/bin/") || inside.starts_with("usr/share/doc/");
        // `hosts` and `kubeconfig` are another test's.
        let settings = [
            "etc/passwd",
            "etc/group",
            "etc/nsswitch.conf",
            "etc/ssl/certs/ca-certificates.crt",
            "etc/hosts",
            "kubeconfig",
        ];
        assert!(library || ours || settings.contains(&inside), "{inside}");
    }
    let user = IMAGE.config["config"]["User"].as_str().unwrap();
    let known = fs::read_to_string(IMAGE.root.join("etc/passwd")).unwrap();
    assert!(known.contains(&format!(":x:{user}:")), "{known}");
}

#[test]
fn the_configuration_names_the_layers_by_what_is_in_them() {
    let layers = IMAGE.manifest["layers"].as_array().unwrap();
    // Not compressed, so a layer's digest is that of its content.
    let digests: Vec<&Value> = layers.iter().map(|layer| &layer["digest"]).collect();
    let named: Vec<&Value> = IMAGE.config["rootfs"]["diff_ids"].as_array().unwrap().iter().collect();
    assert_eq!(named, digests);
    assert_eq!(IMAGE.config["history"].as_array().unwrap().len(), layers.len());
    assert_eq!(IMAGE.config["os"], "linux");
}

#[test]
fn the_same_binaries_give_the_same_archive() {
    let folder = tempfile::tempdir().unwrap();
    let again = folder.path().join("again.tar");
    make(&again);
    assert_eq!(digest(&again), digest(&IMAGE.archive));
}

/// The image of the workflow is built from the Dockerfile, the one that is tested here by the script.
#[test]
fn the_dockerfile_describes_the_same_image() {
    let text = fs::read_to_string(workspace().join("Dockerfile")).unwrap().replace("\\\n", " ");
    let last = text.rfind("\nFROM ").unwrap();
    let said: BTreeMap<&str, &str> = text[last + 1..]
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(word, _)| *word != "COPY")
        .collect();
    assert!(said["FROM"].starts_with("gcr.io/distroless/cc-"), "{}", said["FROM"]);
    let config = &IMAGE.config["config"];
    assert_eq!(said["USER"], config["User"]);
    assert_eq!(said["WORKDIR"], config["WorkingDir"]);
    assert_eq!(json(said["ENTRYPOINT"].as_bytes()), config["Entrypoint"]);
    assert_eq!(said["ENV"], config["Env"][0]);
    let version = said["ARG"].strip_prefix("VERSION=").unwrap();
    assert_eq!(version, config["Labels"]["org.opencontainers.image.version"]);
    let labels: BTreeMap<&str, String> = said["LABEL"]
        .split_whitespace()
        .filter_map(|label| label.split_once('='))
        .map(|(name, value)| (name, value.trim_matches('"').replace("${VERSION}", version)))
        .collect();
    let ours: BTreeMap<&str, String> = config["Labels"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(labels, ours);
    for program in ["garage-holdfast", "kubectl-holdfast"] {
        assert!(text.contains(&format!("/src/target/release/{program}")), "{program}");
    }
}
