//! garage.toml, its keys in the only order in which they appear (`compat.md` 3).

use super::toml::{Document, quoted};
use crate::pool::site::{Pool, TomlInput};

/// Renders the file of one pool, or with `None` the file that no pool uses. `consul_token` is the token's
/// value where the site uses one.
pub fn render(input: &TomlInput, factor: usize, pool: Option<&Pool>, consul_token: Option<&str>) -> String {
    let mut toml = Document::new();
    toml.string("metadata_dir", Some("/data/metadata"));
    match pool {
        Some(pool) if !pool.single_data => {
            toml.raw("data_dir = [");
            for path in pool.disks.data_paths() {
                let name = quoted(&path.path);
                if path.read_only {
                    toml.raw(&format!("    {{ path = {name}, read_only = true }},"));
                } else {
                    let capacity = pool.path_capacity.get(&path.path).copied().unwrap_or_default();
                    toml.raw(&format!("    {{ path = {name}, capacity = \"{capacity}\" }},"));
                }
            }
            toml.raw("]");
        }
        _ => {
            toml.string("data_dir", Some("/data/data"));
        }
    }
    toml.blank().string("db_engine", Some(&input.db_engine));
    lines(&mut toml, &input.after_db_engine);
    toml.plain("replication_factor", Some(factor)).string("consistency_mode", Some(&input.consistency_mode));
    lines(&mut toml, &input.after_consistency_mode);
    toml.string("rpc_bind_addr", Some(&input.rpc_bind_addr))
        .string("rpc_secret_file", Some("/secrets/rpc/rpc-secret"));
    lines(&mut toml, &input.after_rpc_secret_file);
    toml.strings("bootstrap_peers", &input.bootstrap_peers);
    lines(toml.table("s3_api"), &input.s3_api);
    if let Some(k2v) = &input.k2v_api {
        lines(toml.table("k2v_api"), k2v);
    }
    if let Some(web) = &input.s3_web {
        lines(toml.table("s3_web"), web);
    }
    toml.table("admin")
        .string("api_bind_addr", Some(&input.admin_bind_addr))
        .string("admin_token_file", Some("/secrets/admin/admin-token"));
    lines(&mut toml, &input.after_admin_token_file);
    if let Some(kubernetes) = &input.kubernetes_discovery {
        lines(toml.table("kubernetes_discovery"), kubernetes);
    }
    if let Some(consul) = &input.consul_discovery {
        lines(toml.table("consul_discovery"), consul);
        toml.string("token", consul_token);
    }
    toml.finish()
}

fn lines(toml: &mut Document, lines: &[(&'static str, String)]) {
    for (key, value) in lines {
        toml.plain(key, Some(value));
    }
}
