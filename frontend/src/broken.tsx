import { Alert, Button, Page } from "./ui";

/** Broken is shown when a page itself fails, for instance when its code was replaced by a newer version. */
export function Broken() {
  return (
    <Page title="Something went wrong">
      <Alert title="This page could not be shown"><p>Load it again: a newer version may be there. What you have booked or paid is not affected.</p><Button onClick={() => location.reload()}>Load again</Button></Alert>
    </Page>
  );
}
