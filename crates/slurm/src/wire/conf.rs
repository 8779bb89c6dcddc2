//! slurmctld's configuration, as slurmctld has it in mind.

use serde::de::MapAccess;
use serde_json::{Map, Value};

use super::envelope::Body;

/// The parameters of slurm.conf with the values in force. From v0.0.45 on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conf(pub Map<String, Value>);

impl Conf {
    /// A parameter, whatever the case of its name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// The answer while it is read.
#[derive(Debug, Default)]
pub struct ConfAnswer(Option<Map<String, Value>>);

impl Body for ConfAnswer {
    type Output = Conf;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key == "slurm_conf" {
            self.0 = Some(map.next_value()?);
        }
        Ok(key == "slurm_conf")
    }

    fn finish(self) -> Result<Conf, &'static str> {
        self.0.map(Conf).ok_or("slurm_conf")
    }
}
