//! Volumes, by name, and where containers mount them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use slurm_operator_api::common::{template::Overlay, validation::FieldError};

use super::{find, repeated};
use crate::overlay::Fields;

/// A volume that daemons refer to by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeSource {
    pub name: String,
    /// What it is, as in a pod: exactly one field.
    pub source: Fields,
}

/// All volumes of a cluster.
#[derive(Clone, Debug, Default)]
pub struct VolumeSources {
    all: Vec<VolumeSource>,
    /// Path of the list in the spec.
    path: String,
}

/// A volume of a daemon. Exactly one of the two must be set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volume {
    /// Name of a volume of the cluster.
    pub source: Option<String>,
    /// Spec of a claim that each pod gets.
    pub claim: Option<Overlay>,
}

/// A volume, and where it is mounted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mount {
    /// Name of the volume in the pod.
    pub name: String,
    pub volume: Volume,
    pub path: String,
    /// Path within the volume; its root if empty.
    pub sub_path: String,
    pub is_read_only: bool,
    /// The field that describes it.
    pub field: String,
}

/// What a pod needs for its mounts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mounted {
    /// Volumes of the pod.
    pub volumes: Vec<Value>,
    /// Claims that each pod gets, as in a `StatefulSet`.
    pub claims: Vec<Value>,
    /// Mounts of the container.
    pub mounts: Vec<Value>,
}

impl VolumeSources {
    /// `path` is that of the list in the spec. Refuses two volumes of one name, and one that is not exactly one kind of volume.
    pub fn new(all: Vec<VolumeSource>, path: &str) -> Result<Self, Vec<FieldError>> {
        let mut problems = repeated(all.iter().map(|volume| volume.name.as_str()), path);
        for (at, volume) in all.iter().enumerate() {
            let kinds: Vec<&str> =
                volume.source.iter().filter(|(_, value)| !value.is_null()).map(|(kind, _)| kind.as_str()).collect();
            let problem = match kinds.as_slice() {
                [_] => continue,
                [] => "does not say what the volume is: set one source, such as persistentVolumeClaim".to_owned(),
                several => format!("has {} sources, {}: keep one", several.len(), several.join(" and ")),
            };
            problems.push(FieldError::new(format!("{path}[{at}]"), problem));
        }
        if problems.is_empty() { Ok(Self { all, path: path.to_owned() }) } else { Err(problems) }
    }

    /// Resolves the mounts of a container, below the directory `root` (which is empty if they are absolute).
    pub fn mount(&self, mounts: &[Mount], root: &str) -> Result<Mounted, Vec<FieldError>> {
        let (mut mounted, mut problems) = (Mounted::default(), Vec::new());
        let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
        for mount in mounts {
            let field = &mount.field;
            let path = clean(&mount.path);
            if !names.insert(mount.name.as_str()) {
                problems.push(FieldError::new(format!("{field}.name"), format!("`{}` is used twice", mount.name)));
            }
            match &path {
                None => {
                    let text = format!("`{}` is not an absolute path below / without ..", mount.path);
                    problems.push(FieldError::new(format!("{field}.mountPath"), text));
                }
                Some(path) if !paths.insert(path.clone()) => {
                    problems.push(FieldError::new(format!("{field}.mountPath"), format!("`{path}` is mounted twice")));
                }
                Some(_) => {}
            }
            match self.resolve(mount) {
                Ok(Resolved::Volume(volume)) => mounted.volumes.push(volume),
                Ok(Resolved::Claim(claim)) => mounted.claims.push(claim),
                Err(problem) => problems.push(problem),
            }
            let mut entry = Fields::new();
            entry.insert("name".to_owned(), json!(mount.name));
            entry.insert("mountPath".to_owned(), json!(format!("{root}{}", path.unwrap_or_default())));
            if !mount.sub_path.is_empty() {
                entry.insert("subPath".to_owned(), json!(mount.sub_path));
            }
            if mount.is_read_only {
                entry.insert("readOnly".to_owned(), json!(true));
            }
            mounted.mounts.push(entry.into());
        }
        if problems.is_empty() { Ok(mounted) } else { Err(problems) }
    }

    fn resolve(&self, mount: &Mount) -> Result<Resolved, FieldError> {
        let Mount { name, field, .. } = mount;
        match (&mount.volume.source, &mount.volume.claim) {
            (Some(source), None) => {
                let path = format!("{field}.volumeSourceName");
                let source = find(&self.all, |volume| &volume.name, source, &path, &self.path)?;
                let mut volume = source.source.clone();
                volume.retain(|_, value| !value.is_null());
                volume.insert("name".to_owned(), json!(name));
                Ok(Resolved::Volume(volume.into()))
            }
            (None, Some(claim)) => Ok(Resolved::Claim(json!({"metadata": {"name": name}, "spec": claim.fields()}))),
            (None, None) => Err(FieldError::new(field, "set volumeSourceName or volumeClaimTemplateSpec")),
            (Some(_), Some(_)) => {
                Err(FieldError::new(field, "has volumeSourceName and volumeClaimTemplateSpec: keep one"))
            }
        }
    }
}

enum Resolved {
    Volume(Value),
    Claim(Value),
}

/// An absolute path below the root in its shortest form.
fn clean(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.strip_prefix('/')?.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (!parts.is_empty() && !parts.contains(&"..")).then(|| format!("/{}", parts.join("/")))
}
