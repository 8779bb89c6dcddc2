//! Calls about jobs.

use serde_json::json;

use super::{Answer, Call, Client, Cursor, Error, Poll, response, transport::Request};
use crate::{
    version::RestVersion,
    wire::{
        Job, JobBrief, JobId, JobMetrics, JobSpec, JobStateEntry, Listing, NoVal, Signal, StepStatuses, SubmitAnswer,
        Submitted, Warning,
    },
};

impl Client {
    /// Lists all jobs that slurmctld still has in memory; finished ones for some minutes.
    pub async fn jobs(&self) -> Result<Answer<Listing<Job>>, Error> {
        self.list(Call::Jobs).await
    }

    /// Lists all jobs with only the fields that become metrics.
    pub async fn job_metrics(&self) -> Result<Answer<Listing<JobMetrics>>, Error> {
        self.list(Call::Jobs).await
    }

    /// Lists all jobs, unless none has changed since the cursor; updates the cursor.
    pub async fn jobs_since(&self, cursor: &mut Cursor) -> Result<Poll<Answer<Listing<JobBrief>>>, Error> {
        let mut request = Request::new(Call::Jobs);
        if let Some(time) = cursor.update_time() {
            request = request.query("update_time", time);
        }
        let answer: Answer<Listing<JobBrief>> = self.ask_list(request).await?;
        // No 304 here, but an empty list, no time and a warning. Without the warning there really are no jobs.
        let unchanged = |warning: &Warning| warning.description.starts_with("No job changes");
        if answer.items.is_empty() && answer.last_update == 0 && answer.warnings.iter().any(unchanged) {
            return Ok(Poll::Unchanged);
        }
        cursor.set(answer.last_update);
        Ok(Poll::Changed(answer))
    }

    /// Lists only the states of all jobs: a much smaller response than [`Client::jobs`].
    pub async fn job_states(&self) -> Result<Answer<Listing<JobStateEntry>>, Error> {
        self.list(Call::JobStates).await
    }

    /// Returns one job. slurmrestd responds with the whole array or heterogeneous job; this returns only the record of
    /// this job or task. A pending task may share its record with the rest of its array.
    pub async fn job(&self, id: impl Into<JobId>) -> Result<Answer<Job>, Error> {
        let id = id.into();
        let missing = || Error::NotFound { call: Call::Job, what: id.to_string() };
        let Answer { body, meta, warnings } = self.get::<Job>(Call::Job, id.to_string()).await?;
        let is = |job: &&Job| match id.task {
            None => job.job_id == id.id,
            Some(task) => job.array_task_id == NoVal::Is(task.into()),
        };
        let waits = |job: &&Job| id.task.is_none() || !job.array_task_string.is_empty();
        let job = body.iter().find(is).or_else(|| body.iter().find(waits)).cloned().ok_or_else(missing)?;
        Ok(Answer { body: job, meta, warnings })
    }

    /// Returns state and nodes of one job. As with [`Client::job`], slurmrestd may respond with a whole array: records are decoded
    /// as they arrive.
    pub async fn job_brief(&self, id: u32) -> Result<Answer<JobBrief>, Error> {
        let missing = || Error::NotFound { call: Call::Job, what: id.to_string() };
        let Answer { body, meta, warnings } = self.ask_list(Request::named(Call::Job, id.to_string())).await?;
        let job = body.into_iter().find(|job: &JobBrief| job.job_id == id).ok_or_else(missing)?;
        Ok(Answer { body: job, meta, warnings })
    }

    /// Submits a job.
    pub async fn submit(&self, job: &JobSpec) -> Result<Answer<Submitted>, Error> {
        self.ask::<SubmitAnswer>(Request::new(Call::SubmitJob).body(&json!({ "job": job }))?).await
    }

    /// Cancels a job.
    pub async fn cancel_job(&self, id: impl Into<JobId>) -> Result<Answer<()>, Error> {
        self.end(id.into(), None).await
    }

    /// Sends a signal to a job.
    pub async fn signal_job(&self, id: impl Into<JobId>, signal: Signal) -> Result<Answer<()>, Error> {
        self.end(id.into(), Some(signal)).await
    }

    /// Requeues a job. Since v0.0.45.
    pub async fn requeue_job(&self, id: impl Into<JobId>) -> Result<Answer<()>, Error> {
        self.steps(Request::named(Call::RequeueJob, id.into().to_string())).await
    }

    async fn end(&self, id: JobId, signal: Option<Signal>) -> Result<Answer<()>, Error> {
        self.require(Call::CancelJob)?;
        // The response is the same whether the job existed or not.
        if self.rest_version() == RestVersion::V41 {
            self.job(id).await.map_err(|error| match error {
                Error::NotFound { what, .. } => Error::NotFound { call: Call::CancelJob, what },
                error => error,
            })?;
        }
        let mut request = Request::named(Call::CancelJob, id.to_string());
        if let Some(signal) = signal {
            request = request.query("signal", signal.as_str());
        }
        self.steps(request).await
    }

    async fn steps(&self, request: Request) -> Result<Answer<()>, Error> {
        let reply = self.exchange(&request).await?;
        let answer = response::answer::<StepStatuses>(&request, self.rest_version(), &reply)?;
        let answer = Answer::from(answer);
        response::steps(&request, answer.body.clone())?;
        Ok(answer.map(drop))
    }
}
