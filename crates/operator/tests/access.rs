//! Metrics for those who may read them, on a real API server: it checks tokens and rights.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::json;
use slurm_operator::{
    access::Access,
    certificates::{Current, Lifetimes, issue::renew, plan_certificates::Renewal, tls},
    health::{Pages, Readiness, Waiting, all_guarded},
    metrics::Metrics,
    slurm_view::Views,
    trigger,
};
use testkit::api_server::{TestNamespace, client};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsConnector;

/// The server of an operator with `--metrics-secure`, and a client that trusts it.
struct Server {
    address: SocketAddr,
    connector: TlsConnector,
}

impl Server {
    async fn start(client: Client) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (names, now) = (["localhost".to_owned()], Timestamp::now());
        let made = renew(Renewal::All, None, &names, &Lifetimes::default(), now)?.context("no certificate")?;
        let current = Current::default();
        current.set(&made.serving.certificate, &made.serving.key)?;
        let metrics = Metrics::default();
        let pages = Pages {
            readiness: Readiness::default(),
            slurm: Views::new(trigger::channel(), metrics.clone()),
            metrics,
            waiting: Waiting::default(),
        };
        tokio::spawn(tls::serve(listener, current, all_guarded(&pages, Access::new(client))));
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(made.bundle().as_bytes())?)?;
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { address, connector: TlsConnector::from(Arc::new(config)) })
    }

    /// The status of the answer, and all of it.
    async fn get(&self, path: &str, token: Option<&str>) -> Result<(u16, String)> {
        let stream = TcpStream::connect(self.address).await?;
        let mut stream = self.connector.connect(ServerName::try_from("localhost")?, stream).await?;
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{token}\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // Some servers close without saying so in TLS.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).context("no answer")?.parse()?;
        Ok((status, answer))
    }
}

/// A token of a new `ServiceAccount`.
async fn token_of(namespace: &TestNamespace, name: &str) -> Result<String> {
    let accounts: Api<ServiceAccount> = namespace.api();
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let account = ServiceAccount { metadata, ..ServiceAccount::default() };
    accounts.create(&PostParams::default(), &account).await?;
    let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
    let made = accounts.create_token_request(name, &PostParams::default(), &request).await?;
    Ok(made.status.context("no token")?.token)
}

#[tokio::test]
async fn metrics_are_for_those_who_may_read_them() -> Result<()> {
    let client = client().await?;
    let namespace = TestNamespace::create(&client, "access").await?;
    let server = Server::start(client.clone()).await?;
    let (reader, other) = (token_of(&namespace, "reader").await?, token_of(&namespace, "other").await?);
    let name = namespace.name().to_owned();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    // As in the chart.
    let role = json!({"metadata": {"name": name}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]});
    roles.create(&PostParams::default(), &serde_json::from_value(role)?).await?;
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": name}],
    });
    bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    testkit::wait_for("the authorizer to know the binding", std::time::Duration::from_secs(30), async || {
        // Refusals are remembered by a server, so each attempt has its own.
        let (status, answer) = Server::start(client.clone()).await?.get("/metrics", Some(&reader)).await?;
        ensure!(status == 200 && answer.contains("slurm_operator_build_info"), "{answer}");
        Ok(())
    })
    .await?;
    for (path, token, expected) in [
        ("/metrics", None, 401),
        ("/metrics", Some("rubbish"), 401),
        ("/metrics", Some(other.as_str()), 403),
        ("/metrics", Some(other.as_str()), 403),
        ("/metrics", Some(reader.as_str()), 200),
        ("/debug/slurm", None, 401),
        ("/debug/slurm", Some(reader.as_str()), 403),
        ("/healthz", None, 200),
        ("/readyz", None, 200),
        ("/else", Some(reader.as_str()), 403),
    ] {
        let (status, answer) = server.get(path, token).await?;
        ensure!(status == expected, "{path}: {status} instead of {expected}: {answer}");
        ensure!(status != 403 || answer.contains(&format!("system:serviceaccount:{name}:")), "{answer}");
    }
    bindings.delete(&name, &DeleteParams::default()).await?;
    roles.delete(&name, &DeleteParams::default()).await?;
    namespace.delete().await
}
