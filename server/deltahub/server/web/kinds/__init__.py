"""What pages have of each kind of job, a folder each: form.html, report.html, both optional."""
