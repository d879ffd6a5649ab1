// Uploads files that are dropped on a page, through the API that every client uses.
