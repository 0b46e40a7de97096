//! The command line: Envoy's options, as far as they mean something here.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use heddle_config::Options;

/// Heddle's data plane: sidecar, gateway and service engine in one program.
#[derive(Debug, Parser)]
#[command(name = "heddle-proxy", version, disable_help_subcommand = true)]
pub(crate) struct Args {
    /// Bootstrap document in Envoy's format, YAML or JSON
    #[arg(short = 'c', long, value_name = "FILE")]
    pub(crate) config_path: Option<PathBuf>,

    /// Bootstrap as YAML text, merged over the file
    #[arg(long, value_name = "YAML")]
    pub(crate) config_yaml: Option<String>,

    /// Number of worker threads [default: one per core]
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<NonZeroUsize>,

    /// Replaces node.id of the bootstrap
    #[arg(long, value_name = "ID")]
    pub(crate) service_node: Option<String>,

    /// Replaces node.cluster of the bootstrap
    #[arg(long, value_name = "NAME")]
    pub(crate) service_cluster: Option<String>,

    /// Log level: trace, debug, info, warning, error, critical or off
    #[arg(short = 'l', long, value_name = "LEVEL", default_value = "info", value_parser = crate::logging::level)]
    pub(crate) log_level: String,

    /// Seconds that connections may take to finish when listeners are removed or the proxy ends
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) drain_time_s: u32,

    /// Peers on this machine may bypass TCP (`heddle up --tcp-bypass`): look twice for what a read has left
    #[arg(long)]
    pub(crate) tcp_bypass: bool,

    /// Serve, or only check the configuration and exit
    #[arg(long, value_enum, default_value_t = Mode::Serve)]
    pub(crate) mode: Mode,
}

/// `--mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Serve traffic.
    Serve,
    /// Check the configuration and exit.
    Validate,
}

impl Args {
    /// What the command line says about the configuration.
    pub(crate) fn options(&self) -> Options {
        Options {
            path: self.config_path.clone(),
            yaml: self.config_yaml.clone(),
            node_id: self.service_node.clone(),
            node_cluster: self.service_cluster.clone(),
        }
    }

    /// Number of workers: as told, or one per core that this process may use.
    pub(crate) fn workers(&self) -> usize {
        let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.concurrency.unwrap_or_else(cores).get()
    }

    pub(crate) fn drain_time(&self) -> Duration {
        Duration::from_secs(u64::from(self.drain_time_s))
    }

    /// For `/server_info`.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "config_path": self.config_path,
            "config_yaml": self.config_yaml,
            "concurrency": self.workers(),
            "service_node": self.service_node,
            "service_cluster": self.service_cluster,
            "log_level": self.log_level,
            "drain_time": format!("{}s", self.drain_time_s),
            "mode": match self.mode { Mode::Serve => "Serve", Mode::Validate => "Validate" },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_envoys() {
        let args = Args::try_parse_from([
            "heddle-proxy",
            "-c",
            "a.yaml",
            "--concurrency",
            "2",
            "--service-node",
            "n",
            "--service-cluster",
            "c",
            "-l",
            "warning",
            "--drain-time-s",
            "5",
            "--tcp-bypass",
            "--mode",
            "validate",
        ])
        .expect("parses");
        assert_eq!(
            (args.workers(), args.drain_time(), args.tcp_bypass, args.mode),
            (2, Duration::from_secs(5), true, Mode::Validate)
        );
        assert_eq!(args.options().node_id.as_deref(), Some("n"));
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            &["--concurrency", "0"][..],
            &["-l", "loud"],
            &["--mode", "init_only"],
            &["--base-id", "1"],
        ] {
            let all = ["heddle-proxy"].iter().chain(wrong);
            assert!(Args::try_parse_from(all).is_err(), "{wrong:?}");
        }
    }
}
