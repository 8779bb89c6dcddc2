//! The configuration of sshd.

/// `sshd_config`: the files of the image, our lines, and the user's. sshd takes the first value of a keyword and refuses a
/// second subsystem of the same name, so our lines about what the user sets are left out.
pub fn sshd_config(ours: &[&str], extra: Option<&str>) -> String {
    let extra = extra.unwrap_or_default().trim_end();
    // What follows a Match applies to some connections only.
    let for_all = extra.lines().take_while(|line| subject(line) != "match");
    let set: Vec<String> = for_all.map(subject).collect();
    let ours = ours.iter().copied().filter(|line| !set.contains(&subject(line)));
    let lines = std::iter::once("Include /etc/ssh/sshd_config.d/*.conf").chain(ours);
    let extra = Some(extra).filter(|extra| !extra.is_empty());
    lines.chain(extra).flat_map(|line| [line, "\n"]).collect()
}

/// What a line is about: its keyword in lower case, and for a subsystem also the name.
fn subject(line: &str) -> String {
    let mut words = line.split(|c: char| c.is_whitespace() || c == '=').filter(|word| !word.is_empty());
    let keyword = words.next().unwrap_or_default().to_ascii_lowercase();
    match words.next() {
        Some(name) if keyword == "subsystem" => format!("{keyword} {name}"),
        _ => keyword,
    }
}

#[cfg(test)]
mod tests {
    use super::sshd_config;

    const OURS: [&str; 2] = ["X11Forwarding yes", "Subsystem sftp internal-sftp"];
    const INCLUDE: &str = "Include /etc/ssh/sshd_config.d/*.conf\n";

    #[test]
    fn the_users_lines_follow() {
        for (extra, expected) in [
            (None, "X11Forwarding yes\nSubsystem sftp internal-sftp\n"),
            (Some(" \n"), "X11Forwarding yes\nSubsystem sftp internal-sftp\n"),
            (Some("Port 2222\n\n"), "X11Forwarding yes\nSubsystem sftp internal-sftp\nPort 2222\n"),
        ] {
            assert_eq!(sshd_config(&OURS, extra), format!("{INCLUDE}{expected}"));
        }
    }

    #[test]
    fn what_the_user_sets_for_all_connections_replaces_ours() {
        for (extra, expected) in [
            ("  x11forwarding=no", "Subsystem sftp internal-sftp\n  x11forwarding=no\n"),
            ("Subsystem sftp /bin/sftp", "X11Forwarding yes\nSubsystem sftp /bin/sftp\n"),
            ("Subsystem a /bin/a", "X11Forwarding yes\nSubsystem sftp internal-sftp\nSubsystem a /bin/a\n"),
            ("#X11Forwarding no", "X11Forwarding yes\nSubsystem sftp internal-sftp\n#X11Forwarding no\n"),
            (
                "Match User a\nX11Forwarding no",
                "X11Forwarding yes\nSubsystem sftp internal-sftp\nMatch User a\nX11Forwarding no\n",
            ),
        ] {
            assert_eq!(sshd_config(&OURS, Some(extra)), format!("{INCLUDE}{expected}"));
        }
    }
}
