//! Calls about nodes.

use serde_json::json;

use super::{Answer, Call, Client, Cursor, Error, Poll, transport::Request};
use crate::wire::{Listing, Node, NodeBrief, NodeMetrics, NodeUpdate, Nothing};

impl Client {
    /// Lists all nodes.
    pub async fn nodes(&self) -> Result<Answer<Listing<Node>>, Error> {
        self.list(Call::Nodes).await
    }

    /// Lists all nodes with only the fields that become metrics.
    pub async fn node_metrics(&self) -> Result<Answer<Listing<NodeMetrics>>, Error> {
        self.list(Call::Nodes).await
    }

    /// Lists all nodes with only the fields that the operator needs, unless none has changed since the cursor; updates
    /// the cursor. A node's load counts as a change, so a large cluster changes with every round of pings.
    pub async fn nodes_since(&self, cursor: &mut Cursor) -> Result<Poll<Answer<Listing<NodeBrief>>>, Error> {
        let answer = match cursor.update_time() {
            None => self.list(Call::Nodes).await?,
            Some(time) => {
                let request = Request::new(Call::Nodes).query("update_time", time);
                let (reply, first) = self.exchange_list(&request).await?;
                if reply.status == 304 {
                    return Ok(Poll::Unchanged);
                }
                match self.understand_list(request, reply, first).await {
                    Ok(answer) => answer,
                    // Before 26.05 this means that nodes have changed and partitions have not: slurmrestd requests both
                    // with the same time and treats "no change" of the latter as an error.
                    Err(Error::Refused { refusal, .. }) if refusal.status == 500 => self.list(Call::Nodes).await?,
                    Err(error) => return Err(error),
                }
            }
        };
        cursor.set(answer.last_update);
        Ok(Poll::Changed(answer))
    }

    /// Returns one node.
    pub async fn node(&self, name: &str) -> Result<Answer<Node>, Error> {
        let missing = || Error::NotFound { call: Call::Node, what: name.to_owned() };
        let answer = self.get::<Node>(Call::Node, name).await?;
        let Answer { body, meta, warnings } = answer;
        // A name that is a host list would return other nodes too.
        let node = body.into_iter().find(|node| node.name == name).ok_or_else(missing)?;
        Ok(Answer { body: node, meta, warnings })
    }

    /// Updates a node.
    pub async fn update_node(&self, name: &str, update: &NodeUpdate) -> Result<Answer<()>, Error> {
        self.allow(update)?;
        self.ask::<Nothing>(Request::named(Call::UpdateNode, name).body(update)?).await
    }

    /// Updates many nodes in one call: all of them, or none if one is unknown. Names may be host lists.
    pub async fn update_nodes<S: Into<String>>(
        &self,
        names: impl IntoIterator<Item = S>,
        update: &NodeUpdate,
    ) -> Result<Answer<()>, Error> {
        self.allow(update)?;
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let all = names.join(",");
        let request = Request { name: Some(all), ..Request::new(Call::UpdateNodes) };
        self.ask::<Nothing>(request.body(&update.of(names))?).await
    }

    /// Deletes a node. Only possible for nodes created at run time: dynamic nodes and nodes from [`Client::new_node`].
    pub async fn delete_node(&self, name: &str) -> Result<Answer<()>, Error> {
        self.ask::<Nothing>(Request::named(Call::DeleteNode, name)).await
    }

    /// Creates a node from a line as in slurm.conf: `NodeName=x State=CLOUD CPUs=2`. Since v0.0.44.
    pub async fn new_node(&self, line: &str) -> Result<Answer<()>, Error> {
        self.ask::<Nothing>(Request::new(Call::NewNode).body(&json!({ "node_conf": line }))?).await
    }

    /// Servers without topology support would drop it with only a warning.
    fn allow(&self, update: &NodeUpdate) -> Result<(), Error> {
        if update.has_topology() { self.require(Call::NodeTopology) } else { Ok(()) }
    }
}
