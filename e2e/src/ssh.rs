//! A pod with an ssh client, and its key.

use anyhow::Result;

use crate::{Scene, script_pod, slurm_image};

/// The pod with the ssh client.
pub const CLIENT: &str = "client";

/// For sssd: the user and group files of the image.
pub const SSSD_CONF: &str = "[sssd]\nconfig_file_version = 2\nservices = nss,pam\ndomains = DEFAULT\n\n[domain/DEFAULT]\n\
                         id_provider = proxy\nproxy_lib_name = files\nauth_provider = proxy\n\
                         proxy_pam_target = sssd-shadowutils\n";

pub struct SshClient<'a> {
    pub scene: &'a Scene,
    /// The public key.
    pub key: String,
}

impl<'a> SshClient<'a> {
    /// Starts the pod, and makes a key.
    pub async fn start(scene: &'a Scene) -> Result<Self> {
        scene.pod(CLIENT, script_pod(&slurm_image("login")?, "trap exit TERM; sleep infinity & wait")).await?;
        scene.ready(CLIENT).await?;
        let keygen = "ssh-keygen -q -t ed25519 -N '' -f /tmp/key && cat /tmp/key.pub";
        Ok(Self { scene, key: scene.exec(CLIENT, keygen).await? })
    }

    /// The command that logs in as root. The first connection stores the host key, and the later ones compare it.
    pub fn command(host: &str) -> String {
        let options = "-o BatchMode=yes -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile=/tmp/known_hosts";
        format!("ssh -i /tmp/key {options} -o ConnectTimeout=5 root@{host}")
    }

    /// Runs a command on a login node.
    pub async fn run(&self, host: &str, command: &str) -> Result<String> {
        self.scene.exec(CLIENT, &format!("{} '{}'", Self::command(host), command.replace('\'', "'\\''"))).await
    }
}
