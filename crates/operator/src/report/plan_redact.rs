//! Objects without their secrets. Pure.

use std::{collections::BTreeSet, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use slurm_operator_api::slinky::names::annotation;

use super::plan_text::{
    Form, Known, REMOVED, is_no_secret, is_random, is_secret_name, redacted, without_keys_and_tokens,
};

/// Annotations with hashes of secrets. Numbers stand for them: they can be compared, and nobody can try passwords with them.
const HASHES: [&str; 7] = [
    annotation::KEY_RINGS,
    annotation::KEY_RING_READ,
    annotation::hash::JWT_KEY,
    annotation::hash::SLURMDBD_CONF,
    annotation::hash::SLURM_KEY,
    annotation::hash::SSH_HOST_KEYS,
    annotation::hash::SSSD_CONF,
];

/// What `kubectl apply` keeps: the whole object, as it was before anything was removed.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The length from which the value of a variable counts as a key, if it looks random.
const SHORT_KEY: usize = 20;

/// The least length of the lines of a secret that are removed one by one.
const LINE: usize = 16;

/// Removes secrets.
#[derive(Debug, Default)]
pub struct Redactor {
    known: Known,
    /// The hashes of secrets, of which each has a number.
    hashes: BTreeSet<String>,
}

impl Redactor {
    /// Learns the content of a Secret, if it could be read.
    pub fn learn_secret(&mut self, secret: &Value) {
        let name = secret.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        for (entry, content) in entries(secret) {
            // Certificates are public.
            if !has_extension(&entry, "crt") {
                self.learn(&content, &format!("<removed: entry {entry} of Secret {name}>"));
            }
        }
    }

    fn learn(&mut self, content: &[u8], instead: &str) {
        if content.len() >= 8 {
            self.known.add(&STANDARD.encode(content), instead);
        }
        let Ok(text) = std::str::from_utf8(content) else { return };
        self.known.add(text, instead);
        for line in text.lines().filter(|line| line.len() >= LINE && !line.starts_with("-----")) {
            self.known.add(line, instead);
        }
        if let Ok(value) = serde_json::from_str::<Value>(text) {
            let mut texts = Vec::new();
            all_texts(&value, &mut texts);
            for text in texts.into_iter().filter(|text| text.len() >= LINE) {
                self.known.add(text, instead);
            }
        }
    }

    /// Learns the hashes of secrets that an object has.
    pub fn learn_hashes(&mut self, object: &Value) {
        let mut found = Vec::new();
        hashes(object, &mut found);
        for hash in found {
            if self.hashes.insert(hash.clone()) {
                self.known.add(&hash, &format!("<hash {}>", self.hashes.len()));
            }
        }
    }

    /// A text, such as a log.
    pub fn text(&self, text: &str, form: Form) -> String {
        redacted(&self.known.replaced(text), form)
    }

    /// What was made from redacted values.
    pub fn made(&self, text: &str) -> String {
        without_keys_and_tokens(&self.known.replaced(text))
    }

    /// An object of Kubernetes.
    pub fn object(&self, object: &Value) -> Value {
        let kind = object.get("kind").and_then(Value::as_str);
        let mut object = if kind == Some("Secret") { without_content(object) } else { object.clone() };
        if kind == Some("ConfigMap") {
            self.files(&mut object);
        }
        for (key, value) in object.as_object_mut().into_iter().flatten() {
            if key == "metadata" {
                metadata(value);
            }
            // Sizes of secrets.
            if key != "entries" {
                self.field(key, value, false, Form::File);
            }
        }
        object
    }

    /// The content of a `ConfigMap`.
    fn files(&self, map: &mut Value) {
        if let Some(data) = map.get_mut("data").and_then(Value::as_object_mut) {
            for (name, content) in data {
                let Some(text) = content.as_str() else { continue };
                *content = if is_secret_name(name) || has_extension(name, "key") {
                    format!("<removed: {} bytes>", text.len()).into()
                } else {
                    self.text(text, Form::File).into()
                };
            }
        }
        if let Some(data) = map.get_mut("binaryData").and_then(Value::as_object_mut) {
            for content in data.values_mut() {
                *content = format!("<removed: {} bytes in base64>", content.as_str().unwrap_or_default().len()).into();
            }
        }
    }

    fn walk(&self, value: &mut Value, form: Form) {
        match value {
            Value::String(text) => *text = self.text(text, form),
            Value::Array(items) => self.list(items, form),
            Value::Object(fields) => self.fields(fields, form),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn fields(&self, fields: &mut Map<String, Value>, form: Form) {
        // A variable, a header or a parameter.
        let is_secret_pair = fields.get("name").and_then(Value::as_str).is_some_and(is_secret_name);
        for (key, value) in fields {
            self.field(key, value, is_secret_pair, form);
        }
    }

    fn field(&self, key: &str, value: &mut Value, is_secret_pair: bool, form: Form) {
        let form = if ["message", "note", "status"].contains(&key) { Form::Prose } else { form };
        let is_pair = key == "value";
        let is_secret = is_secret_name(key) || (is_secret_pair && is_pair);
        match value {
            Value::String(text) if is_secret && !is_no_secret(text) => REMOVED.clone_into(text),
            Value::String(text)
                if is_pair && text.split(['.', ':', ',', ' ']).any(|word| is_random(word, SHORT_KEY)) =>
            {
                REMOVED.clone_into(text);
            }
            Value::Number(_) if is_secret => *value = REMOVED.into(),
            Value::Array(items) if is_secret && items.iter().any(Value::is_string) => *items = vec![REMOVED.into()],
            // Names, which may be called `token`.
            Value::Object(labels) if ["labels", "matchLabels", "nodeSelector", "selector"].contains(&key) => {
                labels.values_mut().for_each(|label| self.walk(label, form));
            }
            _ => self.walk(value, form),
        }
    }

    /// Arguments of a program, among others: the value of an option may be the next item.
    fn list(&self, items: &mut [Value], form: Form) {
        let mut is_value = false;
        for item in items {
            let is_option = item.as_str().is_some_and(|text| text.starts_with('-') && is_secret_name(text));
            match item {
                Value::String(text) if is_value && !text.starts_with('-') && !is_no_secret(text) => {
                    REMOVED.clone_into(text);
                }
                _ => self.walk(item, form),
            }
            is_value = is_option;
        }
    }
}

/// Shortens what is long and says nothing, and removes what has everything.
fn metadata(metadata: &mut Value) {
    if let Some(last) = metadata.get_mut("annotations").and_then(|annotations| annotations.get_mut(LAST_APPLIED)) {
        *last = format!("<removed: {} bytes>", last.as_str().unwrap_or_default().len()).into();
    }
    // Who has written is enough; the fields are many times longer than the object.
    for writer in metadata.get_mut("managedFields").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(writer) = writer.as_object_mut() {
            writer.retain(|key, _| ["manager", "operation", "subresource", "time"].contains(&key.as_str()));
        }
    }
}

fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name).extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

/// The entries of a Secret, decoded.
fn entries(secret: &Value) -> Vec<(String, Vec<u8>)> {
    let data = secret.get("data").and_then(Value::as_object).into_iter().flatten();
    let decoded = data.map(|(entry, content)| {
        (entry.clone(), STANDARD.decode(content.as_str().unwrap_or_default()).unwrap_or_default())
    });
    let texts = secret.get("stringData").and_then(Value::as_object).into_iter().flatten();
    let texts = texts.map(|(entry, text)| (entry.clone(), text.as_str().unwrap_or_default().as_bytes().to_vec()));
    decoded.chain(texts).collect()
}

/// A Secret with the sizes of its entries.
fn without_content(secret: &Value) -> Value {
    let sizes: Map<String, Value> = entries(secret)
        .into_iter()
        .map(|(entry, content)| (entry, format!("{} bytes", content.len()).into()))
        .collect();
    let mut left = json!({"apiVersion": "v1", "kind": "Secret", "entries": sizes});
    if let Some(fields) = left.as_object_mut() {
        for key in ["metadata", "type", "immutable", "message"] {
            if let Some(value) = secret.get(key) {
                fields.insert(key.to_owned(), value.clone());
            }
        }
    }
    left
}

/// All texts of a value.
fn all_texts<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(items) => items.iter().for_each(|item| all_texts(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| all_texts(field, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The hashes of secrets in the annotations of an object and of its templates.
fn hashes(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| hashes(item, found)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str().filter(|_| HASHES.contains(&key.as_str())) {
                    Some(text) => found.extend(text.split(',').filter(|hash| !hash.is_empty()).map(str::to_owned)),
                    None => hashes(value, found),
                }
            }
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
